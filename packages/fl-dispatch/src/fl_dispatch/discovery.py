# SPDX-License-Identifier: Apache-2.0
"""Finds vendors through entry points. A denied vendor is never imported; a broken one becomes a record all can see."""

from __future__ import annotations

import importlib
import logging
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from fl_dispatch.compatibility import distribution_of, load_vendor
from fl_dispatch.errors import RegistrationError
from fl_dispatch.policy import SelectionPolicy
from fl_dispatch.registry import OpRegistry
from fl_dispatch.vendor import VENDOR_GROUP

logger = logging.getLogger("fl_dispatch")

#: Registered through the same door as vendors: a module with ``register(registry)``.
BUILTIN_BACKENDS = ("fl_dispatch.backends.flagos", "fl_dispatch.backends.reference")


@dataclass(frozen=True)
class VendorRecord:
    """One installed vendor entry point and what became of it.

    ``status`` is ``registered``, ``denied`` (not imported), ``partial`` (some implementations were refused) or
    ``broken``. ``reason`` is one line; ``detail`` is the traceback when there is one.
    """

    name: str
    distribution: str
    version: str
    entry_point: str
    status: str
    reason: str = ""
    detail: str = ""
    implementations: int = 0

    def as_dict(self) -> dict[str, object]:
        """A plain form for reports."""
        return dict(vars(self))


def installed_vendors() -> dict[str, EntryPoint]:
    """Name to entry point of every installed vendor, from metadata alone (nothing is imported)."""
    return {point.name: point for point in entry_points(group=VENDOR_GROUP)}


def discover(
    registry: OpRegistry, policy: SelectionPolicy, already: Iterable[VendorRecord] = ()
) -> tuple[VendorRecord, ...]:
    """Register the built-in backends and every allowed vendor; never raises for a vendor's fault.

    Args:
        registry: filled in place.
        policy: its ``deny_vendors`` and ``allow_vendors`` decide what is imported.
        already: records of an earlier call; vendors that were imported then are not imported again.
    """
    earlier = {(record.name, record.distribution, record.entry_point): record for record in already}
    if not earlier and not registry.snapshot():
        for module in BUILTIN_BACKENDS:
            with registry.registering("fl-dispatch"):
                importlib.import_module(module).register(registry)
    records = []
    taken: dict[str, str] = {}
    for point in sorted(entry_points(group=VENDOR_GROUP), key=lambda p: (p.name, p.value)):
        known = earlier.get((point.name, distribution_of(point)[0], point.value))
        if known is not None and known.status != "denied":
            records.append(known)
            taken.setdefault(point.name, known.distribution)
            continue
        record = _load(registry, policy, point, taken)
        taken.setdefault(point.name, record.distribution)
        if record.status in ("broken", "partial"):
            source = f"{record.distribution} {record.version}"
            logger.warning("vendor %s (%s) is %s: %s", record.name, source, record.status, record.reason)
        records.append(record)
    return tuple(records)


def _load(registry: OpRegistry, policy: SelectionPolicy, point: EntryPoint, taken: dict[str, str]) -> VendorRecord:
    distribution, version = distribution_of(point)

    def record(status: str, reason: str = "", detail: str = "", implementations: int = 0) -> VendorRecord:
        return VendorRecord(point.name, distribution, version, point.value, status, reason, detail, implementations)

    verdict = policy.vendor_verdict(point.name)
    if verdict is not None:
        return record("denied", verdict + "; not imported")
    if point.name in taken:
        return record(
            "broken", f"the vendor name {point.name!r} is already taken by {taken[point.name]}; uninstall one"
        )
    before = _count(registry)
    try:
        register = load_vendor(point).register
        with registry.registering(f"{distribution} {version}", vendor=point.name):
            register(registry)
    except RegistrationError as error:
        added = _count(registry) - before
        return record("partial" if added else "broken", str(error), traceback.format_exc(), added)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  (a vendor may raise anything, extension modules also panics; it is kept)
        added = _count(registry) - before
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return record("partial" if added else "broken", reason, traceback.format_exc(), added)
    added = _count(registry) - before
    if not added:
        return record("broken", "it registered no implementation")
    return record("registered", implementations=added)


def _count(registry: OpRegistry) -> int:
    return sum(len(impls) for impls in registry.snapshot().values())
