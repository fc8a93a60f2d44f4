# SPDX-License-Identifier: Apache-2.0
"""From a vendor's name to its implementations under test."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from fl_dispatch.discovery import VendorRecord, discover, installed_vendors
from fl_dispatch.errors import ConfigError, closest, did_you_mean
from fl_dispatch.facts import default_device_type, facts_for, unavailable_reason
from fl_dispatch.policy import SelectionPolicy
from fl_dispatch.registry import OpRegistry
from fl_dispatch.selection import static_verdict
from fl_dispatch.testing.case import Target
from fl_dispatch.types import BackendImplKind, OpImpl

#: Names of the built-in kinds, which are no entry points.
BUILT_IN = {kind.value: kind for kind in (BackendImplKind.DEFAULT, BackendImplKind.REFERENCE)}


@dataclass(frozen=True)
class VendorUnderTest:
    """What a name stands for on this machine.

    Args:
        name: the vendor.
        record: what became of its entry point; None for a built-in kind.
        targets: its implementations.
        source: distribution and version.
    """

    name: str
    record: VendorRecord | None
    targets: tuple[Target, ...]
    source: str


def registered(name: str) -> tuple[OpRegistry, VendorRecord | None]:
    """A registry with the built-in backends and one vendor, and what became of its entry point; no other is imported.

    Raises:
        ConfigError: no such vendor is installed.
    """
    installed = installed_vendors()
    known = (*sorted(installed), *BUILT_IN)
    if name not in known:
        close = closest(name, known)
        hint = "." if close is None else f"; did you mean {close!r}?"
        raise ConfigError(
            f"no vendor {name!r} is installed; there are: {', '.join(known)}{hint} "
            "A vendor is an entry point of the group fl_dispatch.vendors: `pip install -e .` in its folder makes it known"
        )
    registry = OpRegistry()
    denied = frozenset(other for other in installed if other != name)
    records = discover(registry, SelectionPolicy(deny_vendors=denied))
    return registry, next((record for record in records if record.name == name), None)


def targets(
    name: str, registry: OpRegistry, *, device: str | None, seed: int, compile_backend: str | None = None
) -> tuple[Target, ...]:
    """The implementations of one vendor, or of a built-in kind, with whether each can be used on this machine."""
    device = device or default_device_type()
    backend = compile_backend or ("inductor" if device == "cuda" else "aot_eager")
    return tuple(
        Target(
            vendor=name,
            impl=dataclasses.replace(impl, registered_by=None),
            spec=registry.spec(op_name),
            device=device,
            seed=seed,
            unavailable=_unavailable(impl, device),
            compile_backend=backend,
        )
        for op_name, impls in registry.snapshot().items()
        for impl in impls
        if (impl.kind is BUILT_IN[name] if name in BUILT_IN else impl.vendor == name)
    )


def find(
    name: str,
    *,
    device: str | None = None,
    operators: Sequence[str] = (),
    seed: int = 0,
    compile_backend: str | None = None,
) -> VendorUnderTest:
    """Import one vendor and list what it registers.

    Raises:
        ConfigError: no such vendor is installed, there is no such device, an operator does not exist, or the vendor has no
            implementation of it.
    """
    registry, record = registered(name)
    if device is not None:
        _check_device(device)
    for operator in operators:
        if operator not in registry.op_names():
            raise ConfigError(f"unknown operator {operator!r}; {did_you_mean(operator, registry.op_names())}")
    found = targets(name, registry, device=device, seed=seed, compile_backend=compile_backend)
    wanted = tuple(target for target in found if not operators or target.spec.name in operators)
    # Of a package that could not be loaded in full, the check of that says more.
    if record is None or record.status == "registered":
        own = sorted({target.spec.name for target in found})
        for operator in operators:
            if operator not in own:
                raise ConfigError(
                    f"vendor {name} has no implementation of {operator}, so there is nothing to check; "
                    f"it has: {', '.join(own) or 'none at all'}; hint: leave --fl-operator or operators= out to check all"
                )
    source = f"{record.distribution} {record.version}" if record else "fl-dispatch"
    return VendorUnderTest(name, record, wanted, source)


def _check_device(device: str) -> None:
    """After the vendor was imported, which may bring torch's module for its device."""
    import torch

    here = sorted({"cpu", default_device_type()})
    try:
        module = torch.get_device_module(torch.device(device).type)
        present = getattr(module, "is_available", lambda: True)()
    except RuntimeError:
        present = False
    if not present:
        raise ConfigError(
            f"there is no device {device!r} here; there is: {', '.join(here)}; hint: leave the device out"
        )
    if ":" in device:
        raise ConfigError(
            f"device {device!r}: give the type alone, {device.partition(':')[0]!r}; it runs on the present one"
        )


def _unavailable(impl: OpImpl, device: str) -> str | None:
    reason = None if impl.available is None else unavailable_reason(impl.available)
    return reason or static_verdict(impl, facts_for(device))
