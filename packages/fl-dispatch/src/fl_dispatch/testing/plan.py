# SPDX-License-Identifier: Apache-2.0
"""All checks of one vendor, in the order they run: what cannot be loaded first, then one implementation after the other."""

from __future__ import annotations

from collections.abc import Iterator

from fl_dispatch.testing.case import Case, CheckFailed, Figures
from fl_dispatch.testing.checks import (
    capture,
    compiled,
    fields,
    limits,
    mutation,
    numbers,
    processes,
    repeats,
    shapes,
    signature,
)
from fl_dispatch.testing.vendors import VendorUnderTest

#: Modules with ``cases(target)``.
_CHECKS = (signature, shapes, numbers, limits, mutation, fields, repeats, compiled, capture, processes)


def cases(vendor: VendorUnderTest) -> Iterator[Case]:
    """One a pytest item."""
    if vendor.record is not None:
        meaning = "the package loads, and everything in it is registered"
        yield Case("registration", meaning, lambda: _registered(vendor), vendor=vendor.name)
    for target in vendor.targets:
        for module in _CHECKS:
            yield from module.cases(target)


def _registered(vendor: VendorUnderTest) -> Figures:
    record = vendor.record
    assert record is not None
    if record.status != "registered":
        details = {"entry point": f"{record.name} = {record.entry_point}", "distribution": vendor.source}
        if record.detail:
            details["trace"] = record.detail.rstrip()
        raise CheckFailed(f"the vendor is {record.status}: {record.reason}", None, details)
    return {"implementations": record.implementations}
