# SPDX-License-Identifier: Apache-2.0
"""``Call``: one call of an operator, copied before it happens and judged against float64 afterwards."""

from __future__ import annotations

import random
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fl_dispatch.failure import writable
from fl_dispatch.limits import dtype_name, dtype_of

if TYPE_CHECKING:
    from fl_dispatch.ops.spec import Field, OpSpec
    from fl_dispatch.types import OpImpl

#: Elements of its first input beyond which only some of a call's rows are judged, other ones each time.
_JUDGED_AT_MOST = 1 << 20
#: Elements from which on a tensor that comes again, like a table of cosines, is copied once and for all.
_LARGE = 1 << 16


class NotJudged(Exception):
    """There is nothing to judge a call by, with the reason."""


class Tables:
    """Copies of large tensors that come again and again, such as tables of cosines: on the CPU, by the tensor."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple[weakref.ref[Any], int | None, Any]] = {}

    def copy_of(self, value: Any) -> tuple[Any, bool]:
        """One tensor on the CPU, and whether it was copied at an earlier call."""
        key, version = id(value), _version(value)
        known = self.kept.get(key)  # an entry goes with its tensor, so the same id is the same tensor
        if known is not None and known[1] == version:
            return known[2], True
        copy = _on_cpu(value)
        self.kept[key] = (weakref.ref(value, lambda _: self.kept.pop(key, None)), version, copy)
        return copy, False


class Call:
    """One call: copies of its arguments and of its layer's fields from before it, or of some of their rows.

    Args:
        spec: the operator.
        impl: what is called.
        args: all arguments, the layer first.
        tables: copies of earlier calls.
        draw: draws the rows of a large call.

    Raises:
        Exception: the call cannot be judged.
    """

    def __init__(self, spec: OpSpec, impl: OpImpl, args: Sequence[Any], tables: Tables, draw: random.Random) -> None:
        self._spec, self._impl, self._args, self._tables = spec, impl, args, tables
        self._dtype = dtype_of(args)
        if self._dtype not in spec.tolerances:
            raise NotJudged(f"{spec.name} has no tolerance for {self._dtype}")
        self._rows = _Rows.of(args[1], draw) if spec.by_row else None
        self._writable = writable(spec, args, {})
        self._kept: set[str] = set()
        self._before = tuple(
            self._copied(name, value) for name, value in zip(spec.parameters[1:], args[1:], strict=False)
        )
        self._fields = SimpleNamespace(**{one.name: self._field(one) for one in spec.fields})

    def judged(self, result: Any) -> tuple[float, str | None]:
        """The largest error as a fraction of what is tolerated, and what is wrong."""
        from fl_dispatch.ops.spec import Sample
        from fl_dispatch.testing.calls import as_results
        from fl_dispatch.testing.case import CheckFailed
        from fl_dispatch.testing.judge import Worst, compare

        spec, worst = self._spec, Worst()
        results = as_results(result)
        problem = self._wrong_dtype(results)
        if problem is None:
            sample = Sample("a call of the model", self._fields, self._before)
            # A layer may round to the dtype of its weight on the way.
            dtypes = [dtype_name(getattr(one, "dtype", None)) for one in (*results, *vars(self._fields).values())]
            judged_as = [name for name in (self._dtype, *dtypes) if name in spec.tolerances]
            coarsest = max(judged_as, key=lambda name: spec.tolerances[str(name)].rtol)
            try:
                compare(spec, str(coarsest), sample, tuple(map(self._part, results)), worst, of_a_model=True)
            except CheckFailed as failed:
                details = (text for name, text in failed.details.items() if name != "tolerance")
                problem = "; ".join((failed.problem, *details))
        return worst.fraction, problem or self._written()

    def _wrong_dtype(self, results: Sequence[Any]) -> str | None:
        """Results have the dtype of the first input, or of another floating point one, such as the weight."""
        given = (*self._before, *vars(self._fields).values())
        allowed = [self._args[1].dtype, *(one.dtype for one in given if getattr(one, "is_floating_point", bool)())]
        for one in results:
            if getattr(one, "dtype", allowed[0]) not in allowed:
                return f"a result is {dtype_name(one.dtype)} instead of {self._dtype}"
        return None

    def _written(self) -> str | None:
        """What was written to without being declared."""
        spec = self._spec
        declared = spec.may_mutate if self._impl.mutates is None else self._impl.mutates
        for name, value, old in zip(spec.parameters[1:], self._args[1:], self._before, strict=False):
            if name in declared & self._writable or name in self._kept or not hasattr(old, "shape"):
                continue
            if not _same(self._part(value) if name in spec.by_row else _on_cpu(value), old):
                declares = "which it does not declare to" if name not in declared else "which this call does not allow"
                return f"it wrote to {name}, {declares}"
        return None

    def _copied(self, name: str, value: Any) -> Any:
        spec = self._spec
        if name in spec.by_row:
            return self._part(value)
        # Of operators that do not say what their rows are, any argument may be one that changes.
        if not spec.by_row or name in spec.may_mutate or not _is_large(value):
            return _on_cpu(value)
        copy, came_before = self._tables.copy_of(value)
        if came_before:  # it was looked at then; what is written to it later shows in later results
            self._kept.add(name)
        return copy

    def _field(self, one: Field) -> Any:
        value = getattr(self._args[0], one.name) if one.required else getattr(self._args[0], one.name, one.default)
        return self._tables.copy_of(value)[0] if _is_large(value) else _on_cpu(value)

    def _part(self, value: Any) -> Any:
        return _on_cpu(value) if self._rows is None else self._rows.of_tensor(value)


@dataclass(frozen=True)
class _Rows:
    """Every n-th row of a large call, beginning anywhere: in a dimension of so many, which counts rows."""

    dim: int
    size: int
    rows: slice

    @classmethod
    def of(cls, first: Any, draw: random.Random) -> _Rows | None:
        """For a call with this first input; None where all rows are judged."""
        step = first.numel() // _JUDGED_AT_MOST + 1
        dim = next((dim for dim, size in enumerate(first.shape[:-1]) if size > 1), None)
        if step == 1 or dim is None:
            return None
        size = first.shape[dim]
        return cls(dim, size, slice(draw.randrange(min(step, size)), None, step))

    def of_tensor(self, value: Any) -> Any:
        """Those rows of a tensor that has them, on the CPU; anything else whole."""
        if getattr(value, "ndim", 0) > self.dim and value.shape[self.dim] == self.size:
            value = value[(slice(None),) * self.dim + (self.rows,)]
        return _on_cpu(value)


def _is_large(value: Any) -> bool:
    return getattr(value, "numel", int)() >= _LARGE


def _version(value: Any) -> int | None:
    """How often a tensor was written to, where torch counts that."""
    try:
        return value._version  # type: ignore[no-any-return]  # of a tensor
    except RuntimeError:  # made in inference mode
        return None


def _on_cpu(value: Any) -> Any:
    import torch

    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value


def _same(one: Any, other: Any) -> bool:
    return bool(((one == other) | ((one != one) & (other != other))).all())
