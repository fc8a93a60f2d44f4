# SPDX-License-Identifier: Apache-2.0
"""One check of one implementation: what the kit hands to pytest, and how a check ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fl_dispatch.limits import Checker, checker
from fl_dispatch.ops.spec import OpSpec
from fl_dispatch.types import OpImpl

#: What a check measured, for the report.
Figures = Mapping[str, Any]


class CheckFailed(Exception):
    """The implementation does not do what it has to do.

    Args:
        problem: one sentence.
        input: the sample's label with the arguments' shapes and dtypes, where one call shows the problem.
        details: further lines of the message, by what they are called.
    """

    def __init__(self, problem: str, input: str | None = None, details: Mapping[str, str] | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.input = input
        self.details = dict(details or {})


class NotApplicable(Exception):
    """There is nothing to check here, with the reason."""


@dataclass(frozen=True)
class Target:
    """One implementation under test.

    Args:
        vendor: as given to the kit.
        impl: the implementation.
        spec: its operator.
        device: device type it is tested on.
        seed: of the inputs.
        unavailable: why it cannot run on this machine; None when it can.
        compile_backend: of ``torch.compile``.
    """

    vendor: str
    impl: OpImpl
    spec: OpSpec
    device: str
    seed: int
    unavailable: str | None = None
    compile_backend: str = "aot_eager"

    @property
    def name(self) -> str:
        """Operator and implementation, the beginning of every item's name."""
        return f"{self.spec.name}-{self.impl.impl_id}"

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes it declares, of those the operator has tolerances for."""
        return tuple(name for name in self.spec.tolerances if self.impl.dtypes is None or name in self.impl.dtypes)

    @cached_property
    def verdict(self) -> Checker:
        """``verdict(args, kwargs)``: None when the declared limits admit a call, else why not. As dispatch decides it."""
        return checker(self.impl, self.spec) or (lambda args, kwargs: None)


@dataclass(frozen=True)
class Case:
    """One pytest item.

    Args:
        check: name of the check.
        meaning: what it holds, in a few words.
        run: carries it out; returns what it measured, raises ``CheckFailed`` or ``NotApplicable``.
        variant: dtype, shape family or other part of the name.
        target: the implementation; None for a check of the vendor as a whole.
        vendor: as given to the kit.
    """

    check: str
    meaning: str
    run: Callable[[], Figures]
    variant: str = ""
    target: Target | None = None
    vendor: str = field(default="")

    @property
    def name(self) -> str:
        """The item's name: ``operator-implementation-check-dtype-family``."""
        parts = (self.target.name if self.target else self.vendor, self.check, self.variant)
        return "-".join(part for part in parts if part)
