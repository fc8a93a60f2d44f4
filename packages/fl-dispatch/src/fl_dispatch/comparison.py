# SPDX-License-Identifier: Apache-2.0
"""``Comparison``: each call of an operator judged against float64, in a process that was asked to find a wrong number.

The same judge and the same tolerances as in the conformance kit, on what a real model gives its layers. float64 is computed on the
CPU, so that neither the device's kernels nor replaced ATen operators have a part in it. A call that is wrong is noted and logged;
its result goes to the caller as it is, as it would without the comparison.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fl_dispatch.limits import describe_arguments, dtype_of

if TYPE_CHECKING:
    from fl_dispatch.ops.spec import OpSpec
    from fl_dispatch.site import Site
    from fl_dispatch.types import OpImpl

logger = logging.getLogger("fl_dispatch")

#: Elements from which on a tensor that comes again, like a table of cosines, is copied once and for all.
_LARGE = 1 << 16
#: Layers named in a row of the report; the number of all of them is there too.
_NAMED_AT_MOST = 8


@dataclass
class _Row:
    """What is known of one (operator, layer class, implementation)."""

    calls: int = 0
    worst: float = 0.0
    worst_call: str = ""
    worst_layer: str = ""
    wrong: Counter[str] = field(default_factory=Counter)
    first_wrong: str = ""
    not_judged: Counter[str] = field(default_factory=Counter)


class Comparison:
    """The calls of one process against float64."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, str], _Row] = {}
        self._names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._tables: dict[int, tuple[weakref.ref[Any], Any]] = {}

    def name_layers(self, named: Iterable[tuple[str, Any]]) -> None:
        """Tell what the layers of a model are called there (``model.named_modules()``)."""
        for name, layer in named:
            self._names[layer] = name

    def judge(self, site: Site, impl: OpImpl, args: Sequence[Any]) -> Any:
        """Call the implementation and note how right it was.

        Args:
            site: where it is called.
            impl: what the site runs.
            args: all arguments of the operator, in order; the first is the layer.

        Returns:
            What the implementation returned. What it raises is the caller's.
        """
        spec = site.manager.registry.spec(site.op_name)
        call = describe_arguments([value for value in args[1:] if value is not None], {})
        known = frozenset(place for place, value in enumerate(args[1:]) if id(value) in self._tables)
        before = tuple(self._copied(value) for value in args[1:])
        result = impl.fn(*args)
        row = self._row(site, impl)
        layer = self._name(args[0], site)
        dtype = dtype_of(args) or "no dtype"
        with self._lock:
            row.calls += 1
        if dtype not in spec.tolerances:
            with self._lock:
                row.not_judged[f"{spec.name} has no tolerance for {dtype}"] += 1
            return result
        fraction, problem = _judged(spec, impl, dtype, args, before, known, result)
        with self._lock:
            if fraction > row.worst or not row.worst_call:
                row.worst, row.worst_call, row.worst_layer = fraction, call, layer
            if problem is None:
                return result
            row.wrong[layer] += 1
            is_first, row.first_wrong = not row.first_wrong, row.first_wrong or f"{layer}: {problem}; {call}"
        if is_first:
            logger.error(
                "compare: %s by %s is wrong in %s: %s; the call was %s. Further ones of %s are counted in the report",
                *(spec.name, impl.impl_id, layer, problem, call, site.label or "this operator"),
            )
        return result

    def as_rows(self) -> list[dict[str, Any]]:
        """One row for each (operator, layer class, implementation), for the report."""
        with self._lock:
            return [
                {
                    "operator": op,
                    "layer_class": label,
                    "implementation": impl_id,
                    "calls": row.calls,
                    "worst_error_of_tolerance": round(row.worst, 4),
                    "worst_call": row.worst_call,
                    "worst_layer": row.worst_layer,
                    "wrong_calls": row.wrong.total(),
                    "wrong_layers": len(row.wrong),
                    "first_wrong_layers": list(row.wrong)[:_NAMED_AT_MOST],
                    "first_wrong": row.first_wrong,
                    "not_judged": dict(row.not_judged),
                }
                for (op, label, impl_id), row in sorted(self._rows.items())
            ]

    def _copied(self, value: Any) -> Any:
        """The value on the CPU, as it is before the call."""
        if getattr(value, "numel", int)() < _LARGE:
            return _on_cpu(value)
        key = id(value)
        if key not in self._tables:  # an entry goes with its tensor, so the same id is the same tensor
            self._tables[key] = (weakref.ref(value, lambda _: self._tables.pop(key, None)), _on_cpu(value))
        return self._tables[key][1]

    def _row(self, site: Site, impl: OpImpl) -> _Row:
        with self._lock:
            return self._rows.setdefault((site.op_name, site.label, impl.impl_id), _Row())

    def _name(self, layer: Any, site: Site) -> str:
        try:
            return self._names.get(layer) or f"a {type(layer).__name__}"
        except TypeError:  # neither hashable nor weakly referenced
            return site.label or type(layer).__name__


def _judged(
    spec: OpSpec,
    impl: OpImpl,
    dtype: str,
    args: Sequence[Any],
    before: tuple[Any, ...],
    known: frozenset[int],
    result: Any,
) -> tuple[float, str | None]:
    """The largest error as a fraction of what is tolerated, and what is wrong."""
    from fl_dispatch.ops.spec import Sample
    from fl_dispatch.testing.calls import as_results
    from fl_dispatch.testing.case import CheckFailed
    from fl_dispatch.testing.judge import Worst, compare

    sample = Sample("a call of the model", _fields(spec, args[0]), before)
    got = tuple(_on_cpu(one) for one in as_results(result))
    worst = Worst()
    try:
        compare(spec, dtype, sample, got, worst, atol_by_row=True)
    except CheckFailed as failed:
        details = (text for name, text in failed.details.items() if name != "tolerance")
        return worst.fraction, "; ".join((failed.problem, *details))
    allowed = spec.may_mutate if impl.mutates is None else impl.mutates
    for place, (name, value, old) in enumerate(zip(spec.parameters[1:], args[1:], before, strict=False)):
        # A table that came before was looked at then; what is written to it later shows in later results.
        if name not in allowed and place not in known and not _same(_on_cpu(value), old):
            return worst.fraction, f"it wrote to {name}, which it does not declare to"
    return worst.fraction, None


def _fields(spec: OpSpec, layer: Any) -> SimpleNamespace:
    """The fields of a layer that its operator reads."""
    return SimpleNamespace(
        **{
            one.name: _on_cpu(getattr(layer, one.name) if one.required else getattr(layer, one.name, one.default))
            for one in spec.fields
        }
    )


def _on_cpu(value: Any) -> Any:
    import torch

    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value


def _same(one: Any, other: Any) -> bool:
    import torch

    if not isinstance(one, torch.Tensor):
        return True
    return bool(((one == other) | ((one != one) & (other != other))).all())
