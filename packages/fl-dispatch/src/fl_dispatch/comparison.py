# SPDX-License-Identifier: Apache-2.0
"""``Comparison``: each call of an operator judged against float64, in a process that was asked to find a wrong number.

The same judge and the same tolerances as in the conformance kit, on what a real model gives its layers. float64 is computed on the
CPU, so that neither the device's kernels nor replaced ATen operators have a part in it. A call that is wrong is noted and logged;
its result goes to the caller as it is, as it would without the comparison.
"""

from __future__ import annotations

import contextlib
import logging
import math
import random
import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fl_dispatch.compared_call import Call, NotJudged, Tables
from fl_dispatch.facts import tracing_or_capturing
from fl_dispatch.limits import describe_arguments

if TYPE_CHECKING:
    from fl_dispatch.site import Site
    from fl_dispatch.types import OpImpl

logger = logging.getLogger("fl_dispatch")

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
        self._tables = Tables()
        self._random = random.Random(0)

    def name_layers(self, named: Iterable[tuple[str, Any]]) -> None:
        """Tell what the layers of a model are called there (``model.named_modules()``)."""
        for name, layer in named:
            with contextlib.suppress(TypeError):  # a module that cannot be hashed goes by its class
                self._names[layer] = name

    def judge(self, site: Site, impl: OpImpl, args: Sequence[Any]) -> Any:
        """Call the implementation and note how right it was.

        Args:
            site: where it is called.
            impl: what the site runs.
            args: all arguments of the operator, in order; the first is the layer.

        Returns:
            What the implementation returned. What it raises is the caller's. A call that is traced or captured is not judged: a
            copy to the CPU would become part of the graph, or end the capture.
        """
        if tracing_or_capturing():
            return impl.fn(*args)
        spec = site.manager.registry.spec(site.op_name)
        call: Call | None = None
        why = ""
        try:
            call = Call(spec, impl, args, self._tables, self._random)
        except NotJudged as reason:
            why = str(reason)
        except Exception as error:  # noqa: BLE001  (not the implementation's: what a model passes may be anything)
            why = f"{type(error).__name__}: {error}"
        result = impl.fn(*args)
        try:
            fraction, problem = (0.0, None) if call is None else call.judged(result)
        except Exception as error:  # noqa: BLE001  (likewise, and what an implementation returns)
            call, why = None, f"{type(error).__name__}: {error}"
        row = self._row(site, impl)
        with self._lock:
            row.calls += 1
            if call is None:
                row.not_judged[why] += 1
                return result
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

    def _row(self, site: Site, impl: OpImpl) -> _Row:
        with self._lock:
            return self._rows.setdefault((site.op_name, site.label, impl.impl_id), _Row(impl.vendor or impl.kind.value))

    def _name(self, layer: Any, site: Site) -> str:
        try:
            return self._names.get(layer) or f"a {type(layer).__name__}"
        except TypeError:  # neither hashable nor weakly referenced
            return site.label or type(layer).__name__
