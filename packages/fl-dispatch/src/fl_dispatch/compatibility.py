# SPDX-License-Identifier: Apache-2.0
"""Whether a vendor's distribution was built for this core: what its metadata requires, and the version of its interface."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import fl_dispatch
from fl_dispatch.errors import RegistrationError
from fl_dispatch.vendor import SUPPORTED_API_VERSIONS, Vendor

_CORE = "fl-dispatch"


def distribution_of(point: EntryPoint) -> tuple[str, str]:
    """Name and version of the distribution an entry point comes from."""
    return (point.dist.name, point.dist.version) if point.dist else ("unknown", "unknown")


def load_vendor(point: EntryPoint) -> Vendor:
    """Import what an entry point names, unless its own metadata excludes this core.

    Returns:
        Its ``Vendor``; one of version 1 around a bare ``register(registry)`` function.

    Raises:
        RegistrationError: it was built for another core (both versions are named), or is no vendor of this name.
        BaseException: whatever importing it raises.
    """
    refusal = _requirement_fault(point)
    if refusal is not None:
        raise RegistrationError(refusal)
    loaded = point.load()
    if isinstance(loaded, Vendor):
        if loaded.name != point.name:
            raise RegistrationError(
                f"the entry point is named {point.name!r} but its Vendor value says {loaded.name!r}; name both alike"
            )
        refusal = _interface_fault(point, loaded.api_version)
        if refusal is not None:
            raise RegistrationError(refusal)
        return loaded
    if not callable(loaded):
        raise RegistrationError(
            f"entry point {point.value!r} is {type(loaded).__name__}, "
            "neither a register(registry) function nor a Vendor"
        )
    return Vendor(point.name, loaded)


def _requirement_fault(point: EntryPoint) -> str | None:
    """Why the distribution's requirement of fl-dispatch excludes this one, or None. pip checks it too, and can be told not to."""
    try:
        from packaging.requirements import InvalidRequirement, Requirement
        from packaging.version import InvalidVersion, Version
    except ImportError:  # comes with every framework; without it the interface's version alone is checked
        return None
    for line in (point.dist.requires if point.dist else None) or ():
        try:
            requirement = Requirement(line)
            # A development version is taken for the release it leads to.
            core = Version(Version(fl_dispatch.__version__).base_version)
        except (InvalidRequirement, InvalidVersion):
            continue
        wanted = requirement.name.replace("_", "-").lower() == _CORE
        if (
            wanted
            and not (requirement.marker and not requirement.marker.evaluate())
            and core not in requirement.specifier
        ):
            name, version = distribution_of(point)
            return (
                f"{name} {version} is built for {_CORE} {requirement.specifier}, this is {_CORE} {fl_dispatch.__version__}; "
                f"install versions that belong together: pip install --upgrade {name} {_CORE}"
            )
    return None


def _interface_fault(point: EntryPoint, asked: Any) -> str | None:
    """Why this core does not take that version of the vendor interface, or None."""
    if asked in SUPPORTED_API_VERSIONS and not isinstance(asked, bool):
        return None
    name, version = distribution_of(point)
    supported = " and ".join(map(str, SUPPORTED_API_VERSIONS))
    said = (
        f"{name} {version} is built for version {asked!r} of the vendor interface, "
        f"{_CORE} {fl_dispatch.__version__} takes version {supported}"
    )
    if not isinstance(asked, int) or isinstance(asked, bool) or asked < 1:
        return f"{said}; api_version is an int, 1 or more"
    newer = _CORE if asked > max(SUPPORTED_API_VERSIONS) else name
    return f"{said}; install a newer {newer}"
