# SPDX-License-Identifier: Apache-2.0
"""The facts that installed vendors give about devices, for adapters that make a framework's platform of them."""

from __future__ import annotations

from dataclasses import dataclass

from fl_dispatch.compatibility import distribution_of, load_vendor
from fl_dispatch.discovery import installed_vendors
from fl_dispatch.errors import RegistrationError
from fl_dispatch.policy import SelectionPolicy
from fl_dispatch.vendor import DevicePlatform


@dataclass(frozen=True)
class PlatformRecord:
    """What became of one installed vendor's facts.

    ``platform`` is None when the vendor is denied, cannot be imported, was built for another core or gives none.
    ``reason`` says why it is not usable here; empty: the device is here.
    """

    vendor: str
    distribution: str
    version: str
    platform: DevicePlatform | None
    reason: str = ""

    @property
    def usable(self) -> bool:
        """Whether there are facts and the device is here."""
        return self.platform is not None and not self.reason


def device_platforms(policy: SelectionPolicy) -> tuple[PlatformRecord, ...]:
    """Ask every allowed vendor for its facts and whether its device is here, by name; never raises for a vendor's fault.

    Safe in launchers: vendors are imported, which imports no SDK, and nothing touches a device.
    """
    records = []
    for name, point in sorted(installed_vendors().items()):
        distribution, version = distribution_of(point)
        source = (name, distribution, version)
        denied = policy.vendor_verdict(name)
        if denied is not None:
            records.append(PlatformRecord(*source, None, f"{denied}; not imported"))
            continue
        facts = None
        try:
            facts = load_vendor(point).platform
            reason = _absence(facts)
        except RegistrationError as error:
            records.append(PlatformRecord(*source, facts, str(error)))
            continue
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  (a probe of a vendor, which may raise anything; the reason is kept)
            records.append(PlatformRecord(*source, facts, f"{type(error).__name__}: {error}".splitlines()[0]))
            continue
        records.append(PlatformRecord(*source, facts, reason))
    return tuple(records)


def _absence(facts: DevicePlatform | None) -> str:
    """Why the device is not usable here, empty where it is; raises what the vendor's probe, or the truth of its answer, does."""
    if facts is None:
        return "gives no facts about a device"
    present = facts.present()
    if isinstance(present, str) and present:
        return present
    return "" if present else "its device is not here"
