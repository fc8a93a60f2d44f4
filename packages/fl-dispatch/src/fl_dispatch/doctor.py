# SPDX-License-Identifier: Apache-2.0
"""What is wrong with this environment, as a list of ``Finding``: settings, vendors, FlagGems, operators, adapters.

An adapter adds its own through the entry-point group ``fl_dispatch.doctor``: a function without arguments that returns
findings. A check that raises is itself a finding; nothing here raises for a fault it is there to find.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from fl_dispatch import adapters
from fl_dispatch.errors import ConfigError, FLDispatchError
from fl_dispatch.vendor import VENDOR_GROUP

if TYPE_CHECKING:
    from fl_dispatch.config import Config
    from fl_dispatch.discovery import VendorRecord
    from fl_dispatch.manager import OpManager

DOCTOR_GROUP = "fl_dispatch.doctor"
#: From good to bad.
LEVELS = ("ok", "note", "fault")


@dataclass(frozen=True)
class Finding:
    """One thing the doctor found out.

    Args:
        level: ``ok``, ``note`` (worth knowing, may be as wanted) or ``fault`` (something does not work).
        subject: what it is about, a word or two.
        text: what was found.
        hint: what to do about it.
        detail: a traceback, shown on request.
    """

    level: str
    subject: str
    text: str
    hint: str = ""
    detail: str = ""

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ValueError(f"level must be one of {', '.join(LEVELS)}, not {self.level!r}")

    def as_dict(self) -> dict[str, str]:
        """Plain values, for JSON."""
        return dict(vars(self))


def diagnose(prefix: str, environ: Mapping[str, str] | None = None) -> list[Finding]:
    """Run every check; vendors are loaded with the settings of this prefix. Worst findings first."""
    environ = os.environ if environ is None else environ
    findings: list[Finding] = []
    configs: dict[str, Config] = {}
    _collect(findings, "settings", lambda: _settings(prefix, environ, configs))
    _collect(findings, "vendor names", _vendor_names)
    _collect(findings, "flagos", _flagos)
    if prefix in configs:
        _collect(findings, "operators", lambda: _vendors_and_operators(prefix, configs[prefix]))
        _collect(findings, "platforms", lambda: _platforms(configs[prefix]))
        _collect(findings, "tuned policy", lambda: _tuned(configs[prefix]))
        _collect(findings, "ATen operators", lambda: _aten(configs[prefix]))
    else:
        text = "not loaded, because the settings that say which ones are denied cannot be read"
        findings.append(Finding("note", "vendors", text, "mend the settings first"))
    for point in sorted(entry_points(group=DOCTOR_GROUP), key=lambda p: p.name):
        _collect(findings, point.name, lambda load=point.load: _contributed(load()))  # type: ignore[misc]  # bound per turn
    return sorted(findings, key=lambda finding: -LEVELS.index(finding.level))


def _collect(findings: list[Finding], subject: str, check: Callable[[], Iterable[Finding]]) -> None:
    """Append what a check yields; what it raises becomes a finding beside those it came to yield before."""
    try:
        for finding in check():
            findings.append(finding)
    except (Exception, SystemExit) as error:  # noqa: BLE001  (a check looks at broken things; it is kept and shown)
        text = f"the check itself failed: {type(error).__name__}: {error}"
        findings.append(Finding("fault", subject, text, "--verbose shows the traceback", traceback.format_exc()))


def _contributed(check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    for finding in check():
        if not isinstance(finding, Finding):
            raise TypeError(f"it returned {finding!r}, which is not a fl_dispatch.Finding")
        yield finding


# -- settings


def _settings(prefix: str, environ: Mapping[str, str], configs: dict[str, Config]) -> Iterator[Finding]:
    """Read the settings of every prefix in use, and keep those that can be read in ``configs``."""
    for each in adapters.known_prefixes():
        given = adapters.variables_set(each, environ)
        adapter = adapters.adapter_of(each)
        if each != prefix and not given and adapter is None:
            continue
        try:
            configs[each] = adapters.load_settings(each, environ)
        except ConfigError as error:
            yield Finding("fault", f"{each}*", str(error))
            continue
        text = f"set: {', '.join(given)}" if given else "nothing set, built-in values are in force"
        yield Finding("ok", f"{each}*", text)
        if given and adapter is None:
            yield from _not_read(each, given)


def _not_read(prefix: str, given: list[str]) -> Iterator[Finding]:
    """Variables that the framework at hand does not read."""
    readers = {other: name for other in adapters.known_prefixes() if (name := adapters.adapter_of(other))}
    if prefix == adapters.CORE_PREFIX:
        for other, name in readers.items():
            text = f"{', '.join(given)} has no effect where {name} runs: it reads {other}*"
            yield Finding("note", f"{prefix}*", text, f"set {given[0].replace(prefix, other, 1)} instead")
        return
    owner = adapters.ADAPTERS.get(prefix, "the adapter of this prefix")
    text = f"{', '.join(given)} has no effect: {owner} is not installed"
    yield Finding("note", f"{prefix}*", text, f"pip install {owner}")


# -- what is installed


def _vendor_names() -> Iterator[Finding]:
    """Two distributions under one vendor name: only the first is used."""
    owners: dict[str, set[str]] = {}
    for point in entry_points(group=VENDOR_GROUP):
        owners.setdefault(point.name, set()).add(point.dist.name if point.dist else "unknown")
    for name, distributions in sorted(owners.items()):
        if len(distributions) > 1:
            text = f"{' and '.join(sorted(distributions))} provide the same vendor name; only one is used"
            yield Finding("fault", f"vendor {name}", text, "uninstall one of them")


def _flagos() -> Iterator[Finding]:
    from fl_dispatch.backends.flagos import FlagosBackend
    from fl_dispatch.config import flaggems_wanted
    from fl_dispatch.facts import default_device_type

    backend = FlagosBackend()
    if backend.is_available():
        version = adapters.installed_version("flag-gems") or "of unknown version"
        yield Finding("ok", "flagos", f"flag-gems {version} can be used")
        return
    reason = backend.unavailable_reason() or "not available"
    has_device = default_device_type() != "cpu"
    expected = flaggems_wanted() and adapters.installed_version("flag-gems") is not None
    where = " (FlagGems needs an accelerator, this machine has none)" if expected and not has_device else ""
    yield Finding("fault" if expected and has_device else "note", "flagos", reason + where)


def _tuned(config: Config) -> Iterator[Finding]:
    """Whether the policy was measured with what is installed here, on this device."""
    if config.tuned is None:
        return
    from fl_dispatch.facts import default_device_type, device_name

    measured = config.tuned.get("versions") or {}
    moved = [
        f"{name} {then} then, {now or 'none'} now"
        for name, then in measured.items()
        if name != "python" and not name.startswith(("fl-", "sglang-fl", "vllm-fl"))
        if (now := adapters.installed_version(name)) != then
    ]
    here = device_name(default_device_type())
    if config.tuned.get("device") != here:
        moved.insert(0, f"on {config.tuned.get('device')}, this is {here}")
    when = f"measured {config.tuned.get('date')}"
    if moved:
        hint = "measure again: fl-dispatch tune"
        yield Finding("note", "tuned policy", f"{when} under other conditions: {'; '.join(moved)}", hint)
    else:
        yield Finding("ok", "tuned policy", f"{when} on this device with these versions")


def _aten(config: Config) -> Iterator[Finding]:
    """What a worker would replace, where the settings ask for it."""
    if not config.flagos_aten:
        return
    from fl_dispatch.aten import chosen_offers, offered

    subject, where = "ATen operators", config.origins.get("flagos_aten", "flagos_aten")
    reason, offers = offered()
    if reason is not None:
        level = "fault" if config.policy.strict else "note"
        yield Finding(level, subject, f"{where} is on, but they stay PyTorch's own: {reason}")
        return
    names = "\n".join(f"{offer.key} ({offer.function})" for offer in offers)
    try:
        chosen = chosen_offers(offers, config)
    except ConfigError as error:
        yield Finding("fault", subject, str(error), "--verbose shows what FlagGems has", names)
        return
    yield Finding("ok", subject, f"workers replace {len(chosen)} of the {len(offers)} FlagGems has", "", names)


def _vendors_and_operators(prefix: str, config: Config) -> Iterator[Finding]:
    from fl_dispatch.manager import OpManager

    manager = OpManager(policy=config.policy)
    usable = True
    try:
        manager.registry  # noqa: B018  (loads the vendors; the records are there even when a token is then found wrong)
    except FLDispatchError as error:
        usable = False
        yield Finding("fault", f"{prefix}*", str(error))
    seen: set[str] = set()
    for record in manager.vendors:
        # The second of two with one name is told by _vendor_names.
        if record.name not in seen and (usable or record.status != "registered"):
            yield _vendor(record, manager, prefix)
        seen.add(record.name)
    if usable:
        yield from _operators(manager, in_framework=prefix != adapters.CORE_PREFIX)


def _vendor(record: VendorRecord, manager: OpManager, prefix: str) -> Finding:
    from fl_dispatch.facts import unavailable_reason

    subject = f"vendor {record.name}"
    where = f"{record.distribution} {record.version}"
    if record.status == "denied":
        return Finding("note", subject, f"{where}: {record.reason}")
    if record.status in ("broken", "partial"):
        kept = f" ({record.implementations} other implementations of it are used)" if record.implementations else ""
        hint = f"mend or uninstall {record.distribution}, or leave it out with {prefix}DENY_VENDORS={record.name}"
        return Finding("fault", subject, f"{where} is {record.status}: {record.reason}{kept}", hint, record.detail)
    impls = [impl for impls in manager.registry.snapshot().values() for impl in impls if impl.vendor == record.name]
    probes = {impl.available for impl in impls}
    reasons = {probe: None if probe is None else unavailable_reason(probe) for probe in probes}
    usable = sum(reasons[impl.available] is None for impl in impls)
    if usable == len(impls):
        return Finding("ok", subject, f"{where}: {usable} implementations")
    why = "; ".join(sorted({reason for reason in reasons.values() if reason}))
    return Finding("note", subject, f"{where}: {usable} of {len(impls)} implementations can be used here: {why}")


def _platforms(config: Config) -> Iterator[Finding]:
    """Devices that vendors give facts about, of which the adapters make the framework's platform."""
    from fl_dispatch.platforms import device_platforms

    for record in device_platforms(config.policy):
        if record.platform is not None:
            device = record.platform.device_type
            text = f"{device}: {record.reason or 'the device is here; an adapter offers it to its framework'}"
            yield Finding("note" if record.reason else "ok", f"platform {record.vendor}", text)


def _operators(manager: OpManager, in_framework: bool) -> Iterator[Finding]:
    """Operators that nothing may serve: all of them is a fault; some matter only to a model that needs them."""
    from fl_dispatch.native import native_impl

    names = manager.registry.op_names()
    found = (manager.select(name, native=native_impl(name) if in_framework else None) for name in names)
    stuck = [selection for selection in found if selection.chosen is None]
    if not stuck:
        yield Finding("ok", "operators", f"each of the {len(names)} has an implementation that can run")
    for selection in stuck:
        level = "fault" if len(stuck) == len(names) else "note"
        text = f"{selection.problem}; a model that needs it does not start"
        yield Finding(level, f"operator {selection.op_name}", text, f"fl-dispatch explain {selection.op_name}")
