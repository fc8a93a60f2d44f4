# SPDX-License-Identifier: Apache-2.0
"""Whether the operators and implementations that a policy names exist: what cannot match is a misspelling."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from fl_dispatch.discovery import VendorRecord
from fl_dispatch.errors import ConfigError, UnknownOperatorError, did_you_mean
from fl_dispatch.policy import SelectionPolicy
from fl_dispatch.registry import OpRegistry


def check_operators(policy: SelectionPolicy, known: Collection[str]) -> None:
    """Raise UnknownOperatorError when ``per_op`` names an operator that is not among the known ones."""
    for setting, op_names in (("per_op", policy.per_op), ("by_tokens", policy.by_tokens)):
        for op_name in op_names:
            if op_name not in known:
                hint = did_you_mean(op_name, known)
                raise UnknownOperatorError(f"{setting} names unknown operator {op_name!r}; {hint}")


def check_names(policy: SelectionPolicy, registry: OpRegistry, vendors: Iterable[VendorRecord]) -> None:
    """As ``check_operators``, and raise ConfigError for an ``impl:ID`` that nothing has.

    While a vendor is denied or broken an id may be one of its, and is then left to the selection, which says why not.
    """
    check_operators(policy, registry.op_names())
    if any(record.status != "registered" for record in vendors):
        return
    table = registry.snapshot()
    by_tokens = [(op_name, order) for op_name, buckets in policy.by_tokens.items() for _, order in buckets]
    for op_name, order in [*policy.per_op.items(), *by_tokens, ("", policy.prefer)]:
        ids = {impl.impl_id for op, impls in table.items() for impl in impls if op_name in ("", op)}
        for word in order:
            impl_id = word.removeprefix("impl:")
            if impl_id != word and impl_id not in ids:
                where = f"operator {op_name!r}" if op_name else "any operator"
                raise ConfigError(
                    f"token {word!r}: no implementation of {where} has this id; {did_you_mean(impl_id, ids)} "
                    "(a policy of `fl-dispatch tune` names what was installed where it was made)"
                )
