# SPDX-License-Identifier: Apache-2.0
"""``select``: a pure function from implementations, policy and facts to a ``Selection``, a reason for every candidate.

Logs, command line, errors, reports and tests all show this one object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fl_dispatch.errors import SelectionError
from fl_dispatch.policy import SelectionPolicy
from fl_dispatch.types import OpImpl


@dataclass(frozen=True)
class DeviceFacts:
    """What is known about the place an operator will run in; None: not known, so nothing is excluded by it.

    ``captured``: calls may become part of a captured device graph.
    """

    device_type: str | None = None
    arch: tuple[int, int] | None = None
    dtype: str | None = None
    captured: bool = False

    def __str__(self) -> str:
        arch = f" {self.arch[0]}.{self.arch[1]}" if self.arch else ""
        graphs = ", in device graphs" if self.captured else ""
        return f"{self.device_type or 'any device'}{arch}, {self.dtype or 'any dtype'}{graphs}"


@dataclass(frozen=True)
class Candidate:
    """One implementation in the order it was considered, with the verdict on it."""

    impl: OpImpl
    accepted: bool
    reason: str

    def as_dict(self) -> dict[str, object]:
        """A plain form for reports."""
        return {
            "impl_id": self.impl.impl_id,
            "kind": self.impl.kind.value,
            "vendor": self.impl.vendor,
            "priority": self.impl.priority,
            "accepted": self.accepted,
            "reason": self.reason,
            "registered_by": self.impl.registered_by,
        }


@dataclass(frozen=True)
class Selection:
    """The decision for one operator: the chosen implementation, the ordered rest, and every reason.

    ``problem`` is None when something was chosen; otherwise it says in a sentence why nothing may run.
    """

    op_name: str
    policy: SelectionPolicy
    facts: DeviceFacts
    candidates: tuple[Candidate, ...]
    problem: str | None = None

    @property
    def usable(self) -> tuple[OpImpl, ...]:
        """The chosen implementation followed by those that may take over, in order; one alone under strict."""
        accepted = tuple(c.impl for c in self.candidates if c.accepted)
        if self.problem is not None:
            return ()
        return accepted[:1] if self.policy.strict else accepted

    @property
    def chosen(self) -> OpImpl | None:
        """The implementation to run; None when there is none."""
        return next(iter(self.usable), None)

    @property
    def why(self) -> str:
        """Why the chosen one: its own reason."""
        chosen = self.chosen
        return next((c.reason for c in self.candidates if c.impl is chosen), self.problem or "")

    @property
    def passed_over(self) -> tuple[Candidate, ...]:
        """The candidates that were more wanted than the chosen one, with the reason they were not taken."""
        passed = []
        for candidate in self.candidates:
            if candidate.impl is self.chosen:
                break
            passed.append(candidate)
        return tuple(passed)

    def require(self) -> OpImpl:
        """The chosen implementation; raises SelectionError with every candidate's reason when there is none."""
        chosen = self.chosen
        if chosen is None:
            raise SelectionError(self.describe())
        return chosen

    def describe(self) -> str:
        """Several lines for people: what was decided, and every candidate with its reason."""
        order = " > ".join(token.text for token in self.policy.order(self.op_name))
        head = f"operator {self.op_name!r} ({self.facts}; order {order}"
        head += "; strict)" if self.policy.strict else ")"
        chosen = self.chosen
        head += f": {chosen.impl_id}" if chosen else f": {self.problem}"
        lines = [head]
        for candidate in self.candidates:
            mark = "->" if candidate.impl is chosen else "  " if candidate.accepted else " x"
            lines.append(f"  {mark} {candidate.impl.impl_id:<24} {candidate.reason}")
        if not self.candidates:
            lines.append("     no implementation is registered")
        if chosen is None:
            lines.append(
                "  hint: turn strict off, or prefer a token that is able"
                if self.policy.strict
                else "  hint: `fl-dispatch doctor` shows what is broken and how to mend it"
            )
        return "\n".join(lines)

    def as_dict(self) -> dict[str, object]:
        """A plain form for reports and the command line."""
        chosen = self.chosen
        return {
            "operator": self.op_name,
            "chosen": chosen.impl_id if chosen else None,
            "why": self.why,
            "problem": self.problem,
            "device": {
                "type": self.facts.device_type,
                "arch": self.facts.arch,
                "dtype": self.facts.dtype,
                "captured": self.facts.captured,
            },
            "candidates": [candidate.as_dict() for candidate in self.candidates],
        }


def static_verdict(impl: OpImpl, facts: DeviceFacts) -> str | None:
    """None when nothing that is known excludes the implementation, else why it is excluded."""
    if impl.devices is not None and facts.device_type is not None and facts.device_type not in impl.devices:
        return f"needs device {' or '.join(sorted(impl.devices))}, this is {facts.device_type}"
    if impl.min_arch is not None and (facts.device_type == "cpu" or (facts.arch and facts.arch < impl.min_arch)):
        have = ".".join(map(str, facts.arch)) if facts.arch else "cpu"
        return f"needs architecture {'.'.join(map(str, impl.min_arch))} or newer, this is {have}"
    if impl.dtypes is not None and facts.dtype is not None and facts.dtype not in impl.dtypes:
        return f"takes {', '.join(sorted(impl.dtypes))}, not {facts.dtype}"
    if facts.captured and not impl.capture_safe:
        return "does not declare capture_safe=True, and device graphs are captured here"
    return None


def select(
    op_name: str,
    impls: Iterable[OpImpl],
    policy: SelectionPolicy,
    facts: DeviceFacts | None = None,
    rejected: Mapping[str, str] | None = None,
    remarks: Mapping[str, str] | None = None,
) -> Selection:
    """Order the implementations of one operator and say for each why it is accepted or not.

    Args:
        op_name: the operator.
        impls: every registered implementation of it, also the unusable ones.
        policy: the user's wishes.
        facts: device, architecture and dtype, as far as known.
        rejected: implementation id to reason, for what only the process can know (an unavailable backend, a layer's
            configuration, a demotion).
        remarks: implementation id to what is to be added to the reason of one that is accepted.

    The result depends on the arguments alone and not on the order of ``impls``.
    """
    facts = facts or DeviceFacts()
    rejected, remarks = rejected or {}, remarks or {}
    remaining = sorted(impls, key=lambda impl: (-(impl.priority or 0), impl.impl_id))
    candidates: list[Candidate] = []
    problem: str | None = None
    first_note = "first able in the order, by token {}"
    later_note = "able, but strict never falls back" if policy.strict else "able, would be next"
    for index, token in enumerate(policy.order(op_name)):
        matched = [impl for impl in remaining if token.matches(impl)]
        remaining = [impl for impl in remaining if impl not in matched]
        able_here = False
        for impl in matched:
            reason = policy.vendor_verdict(impl.vendor) if impl.vendor else None
            reason = reason or rejected.get(impl.impl_id) or static_verdict(impl, facts)
            if reason is not None:
                candidates.append(Candidate(impl, False, reason))
                continue
            able_here = True
            first = problem is None and not any(candidate.accepted for candidate in candidates)
            note = first_note.format(token.text) if first else later_note
            remark = remarks.get(impl.impl_id)
            candidates.append(Candidate(impl, True, f"{note}; {remark}" if remark else note))
        if index == 0 and policy.strict and not able_here:
            what = "matches no registered implementation" if not matched else "has no able implementation"
            problem = f"strict, and the wanted token {token.text!r} {what}"
    if problem is None and not any(candidate.accepted for candidate in candidates):
        problem = "no implementation is able"
    return Selection(op_name, policy, facts, tuple(candidates), problem)
