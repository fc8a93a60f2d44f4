# SPDX-License-Identifier: Apache-2.0
"""``Comparison``: each call of an operator judged against float64, in a process that was asked to find a wrong number.

The same judge and the same tolerances as in the conformance kit, on what a real model gives its layers. float64 is computed on the
CPU, so that neither the device's kernels nor replaced ATen operators have a part in it. A call that is wrong is noted and logged;
its result goes to the caller as it is, as it would without the comparison.
"""

from __future__ import annotations

import logging
import math
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

#: Elements of its first input beyond which only some of a call's rows are judged, other ones each time.
_JUDGED_AT_MOST = 1 << 20
#: Elements from which on a tensor that comes again, like a table of cosines, is copied once and for all.
_LARGE = 1 << 16
#: Layers named in a row of the report; the number of all of them is there too.
_NAMED_AT_MOST = 8


@dataclass
class _Row:
    """What is known of one (operator, layer class, implementation)."""

    #: As the conformance kit names it.
    vendor: str
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
        row = self._row(site, impl)
        with self._lock:
            row.calls += 1
        dtype = dtype_of(args) or "no dtype"
        if dtype not in spec.tolerances:
            with self._lock:
                row.not_judged[f"{spec.name} has no tolerance for {dtype}"] += 1
            return impl.fn(*args)
        call = _Call(spec, impl, args, self, row.calls)
        result = impl.fn(*args)
        fraction, problem = call.judged(dtype, result)
        layer, shapes = self._name(args[0], site), describe_arguments([one for one in args[1:] if one is not None], {})
        with self._lock:
            if fraction > row.worst or not row.worst_call:
                row.worst, row.worst_call, row.worst_layer = fraction, shapes, layer
            if problem is None:
                return result
            row.wrong[layer] += 1
            is_first, row.first_wrong = not row.first_wrong, row.first_wrong or f"{layer}: {problem}; {shapes}"
        if is_first:
            logger.error(
                "compare: %s by %s is wrong in %s: %s; the call was %s. Further ones of %s are counted in the report",
                *(spec.name, impl.impl_id, layer, problem, shapes, site.label or "this operator"),
            )
        return result

    def as_rows(self) -> list[dict[str, Any]]:
        """One row for each (operator, layer class, implementation), for the report; the worst error is None where a result was
        NaN or infinite and float64 was not, or the other way round, which JSON has no number for.
        """
        with self._lock:
            return [
                {
                    "operator": op,
                    "layer_class": label,
                    "implementation": impl_id,
                    "vendor": row.vendor,
                    "calls": row.calls,
                    "worst_error_of_tolerance": round(row.worst, 4) if math.isfinite(row.worst) else None,
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

    def table(self, value: Any) -> tuple[Any, bool]:
        """A large tensor on the CPU, and whether it was copied at an earlier call: tables of cosines come again and again."""
        key = id(value)
        came_before = key in self._tables  # an entry goes with its tensor, so the same id is the same tensor
        if not came_before:
            self._tables[key] = (weakref.ref(value, lambda _: self._tables.pop(key, None)), _on_cpu(value))
        return self._tables[key][1], came_before

    def _row(self, site: Site, impl: OpImpl) -> _Row:
        with self._lock:
            return self._rows.setdefault((site.op_name, site.label, impl.impl_id), _Row(impl.vendor or impl.kind.value))

    def _name(self, layer: Any, site: Site) -> str:
        try:
            return self._names.get(layer) or f"a {type(layer).__name__}"
        except TypeError:  # neither hashable nor weakly referenced
            return site.label or type(layer).__name__


class _Call:
    """One call: copies of its arguments from before it, or of some of their rows.

    Args:
        spec: the operator.
        impl: what is called.
        args: all arguments, the layer first.
        comparison: keeps copies of tables.
        number: of the call; decides which rows of a large one are looked at.
    """

    def __init__(self, spec: OpSpec, impl: OpImpl, args: Sequence[Any], comparison: Comparison, number: int) -> None:
        self._spec, self._impl, self._args = spec, impl, args
        self._rows = _rows(args[1], number) if spec.by_row else None
        before, self._kept = [], set()
        for name, value in zip(spec.parameters[1:], args[1:], strict=False):
            if name not in spec.by_row and getattr(value, "numel", int)() >= _LARGE:
                value, came_before = comparison.table(value)
                if came_before:
                    self._kept.add(name)
            else:
                value = _on_cpu(value, self._rows if name in spec.by_row else None)
            before.append(value)
        self._before = tuple(before)

    def judged(self, dtype: str, result: Any) -> tuple[float, str | None]:
        """The largest error as a fraction of what is tolerated, and what is wrong."""
        from fl_dispatch.ops.spec import Sample
        from fl_dispatch.testing.calls import as_results
        from fl_dispatch.testing.case import CheckFailed
        from fl_dispatch.testing.judge import Worst, compare

        spec = self._spec
        sample = Sample("a call of the model", _fields(spec, self._args[0]), self._before)
        got = tuple(_on_cpu(one, self._rows) for one in as_results(result))
        worst = Worst()
        try:
            compare(spec, dtype, sample, got, worst, atol_by_row=True)
        except CheckFailed as failed:
            details = (text for name, text in failed.details.items() if name != "tolerance")
            return worst.fraction, "; ".join((failed.problem, *details))
        allowed = spec.may_mutate if self._impl.mutates is None else self._impl.mutates
        for name, value, old in zip(spec.parameters[1:], self._args[1:], self._before, strict=False):
            # A table that came before was looked at then; what is written to it later shows in later results.
            if name in allowed or name in self._kept or not hasattr(value, "shape"):
                continue
            if not _same(_on_cpu(value, self._rows if name in spec.by_row else None), old):
                return worst.fraction, f"it wrote to {name}, which it does not declare to"
        return worst.fraction, None


def _rows(first: Any, number: int) -> slice | None:
    """Every so manieth row of a large call, beginning elsewhere each time; None: all of them."""
    step = first.numel() // _JUDGED_AT_MOST + 1
    return slice(number % min(step, first.shape[0]), None, step) if step > 1 and first.dim() else None


def _fields(spec: OpSpec, layer: Any) -> SimpleNamespace:
    """The fields of a layer that its operator reads."""
    return SimpleNamespace(
        **{
            one.name: _on_cpu(getattr(layer, one.name) if one.required else getattr(layer, one.name, one.default))
            for one in spec.fields
        }
    )


def _on_cpu(value: Any, rows: slice | None = None) -> Any:
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    return (value if rows is None else value[rows]).detach().to("cpu", copy=True)


def _same(one: Any, other: Any) -> bool:
    return bool(((one == other) | ((one != one) & (other != other))).all())
