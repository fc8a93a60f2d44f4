# SPDX-License-Identifier: Apache-2.0
"""What a planted fault is, and how one is planted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Fn = Callable[..., Any]


@dataclass(frozen=True)
class Fault:
    """A wrong implementation.

    Args:
        operator: of this operator.
        fn: the implementation.
        report: what users of such a package reported.
        caught_by: beginnings of ``check-variant``; each has to fail.
        besides: further ones that may fail, as they cannot pass with such a fault. All others have to pass.
        declares: of ``OpImpl``, beyond ``mutates=frozenset()``.
    """

    operator: str
    fn: Fn
    report: str
    caught_by: tuple[str, ...]
    besides: tuple[str, ...] = ()
    declares: Mapping[str, Any] = field(default_factory=dict)


FAULTS: dict[str, Fault] = {}


def fault(
    operator: str, report: str, *caught_by: str, besides: tuple[str, ...] = (), **declares: Any
) -> Callable[[Fn], Fn]:
    """Keep a function as the fault of its name."""

    def keep(fn: Fn) -> Fn:
        FAULTS[fn.__name__] = Fault(operator, fn, report, caught_by, besides, declares)
        return fn

    return keep


def numbers(family: str, dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16")) -> tuple[str, ...]:
    """The checks of one shape family."""
    return tuple(f"numbers-{dtype}-{family}" for dtype in dtypes)
