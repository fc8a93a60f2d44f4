# SPDX-License-Identifier: Apache-2.0
"""``fields``: of ``obj`` only what is declared in ``reads`` is looked at, else what the operator's specification has."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from fl_dispatch.testing.calls import copied, described, run, samples_for
from fl_dispatch.testing.case import Case, CheckFailed, Figures, NotApplicable, Target


def cases(target: Target) -> Iterator[Case]:
    """One."""
    yield Case("fields", "reads only declared fields of obj", partial(_check, target), "", target)


class _Watched:
    """A layer that notes which of its fields are read, and has none but the declared ones."""

    def __init__(self, fields: dict[str, Any], declared: frozenset[str], defaults: dict[str, Any]) -> None:
        given = {**defaults, **fields}
        self.__dict__["_fields"] = {name: value for name, value in given.items() if name in declared}
        self.__dict__["_undeclared"] = []
        self.__dict__["_read"] = set()

    def __getattr__(self, name: str) -> Any:
        if name in self._fields:
            self._read.add(name)
            return self._fields[name]
        if not name.startswith("__"):
            self._undeclared.append(name)
        raise AttributeError(f"obj.{name} is not declared")


def _check(target: Target) -> Figures:
    spec = target.spec
    reads = target.impl.reads
    declared = frozenset(field.name for field in spec.fields) if reads is None else reads
    whose = f"the specification of {spec.name} has" if reads is None else "reads declares"
    names = ", ".join(sorted(declared)) or "none"
    used: set[str] = set()
    calls = 0
    for dtype in target.dtypes:
        for family, sample in samples_for(target, dtype):
            if family == "model_sizes":
                continue
            given, _ = copied(sample)
            watched = _Watched(vars(given.obj), declared, dict(spec.field_defaults))
            object.__setattr__(given, "obj", watched)  # a copy of our own, though frozen
            failure: CheckFailed | None = None
            try:
                run(target, given, dtype, sample)
            except CheckFailed as error:
                failure = error
            calls += 1
            used |= watched._read
            if watched._undeclared:
                what = ", ".join(f"obj.{name}" for name in dict.fromkeys(watched._undeclared))
                raise CheckFailed(
                    f"read {what}; {whose} {names}",
                    described(sample, dtype),
                    {"hint": "in a compiled graph an implementation has the declared fields only"},
                )
            if failure is not None:
                raise failure
    if not calls:
        raise NotApplicable("its declared limits refuse every call of the kit")
    return {"calls": calls, "read": sorted(used), "declared": sorted(declared)}
