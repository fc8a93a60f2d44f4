# SPDX-License-Identifier: Apache-2.0
"""ATen replacement: PyTorch's own operators served by FlagGems, in the processes that run a model and only there.

FlagGems is asked through its public ``enable`` what it would register; the white and black list are applied to that, and
what is left is registered with PyTorch's dispatcher. Nothing here imports torch or FlagGems before ``replace_aten``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fl_dispatch import ops
from fl_dispatch.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from fl_dispatch.aten_record import AtenRecord
    from fl_dispatch.config import Config

logger = logging.getLogger("fl_dispatch")


@dataclass(frozen=True)
class Offer:
    """One ATen operator FlagGems has a kernel for.

    Args:
        key: ATen's name with the overload, for example ``"add.Tensor"``.
        fn: FlagGems' function.
        dispatch_key: of the device, for example ``"CUDA"``.
        options: further arguments FlagGems registers it with.
    """

    key: str
    fn: Callable[..., Any]
    dispatch_key: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def function(self) -> str:
        """FlagGems' name of it, for example ``"add"``."""
        return str(getattr(self.fn, "__name__", self.fn))

    def is_called(self, names: Iterable[str]) -> bool:
        """Whether one of these is its name, ATen's or FlagGems'."""
        return self.key in names or self.function in names


@dataclass(frozen=True)
class AtenReplacement:
    """What became of ATen's operators in this process.

    Args:
        state: ``"off"`` (not asked for), ``"unavailable"`` or ``"on"``.
        reason: why it is not on.
        version: of FlagGems.
        replaced: ATen operator to FlagGems' function.
        left_out: what FlagGems offers and the lists leave to PyTorch.
        refused: operator to reason, for what PyTorch does not have or did not let us register.
        record: which of them served a call; None where nobody asked.
    """

    state: str
    reason: str = ""
    version: str | None = None
    replaced: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    record: AtenRecord | None = None

    def as_dict(self) -> dict[str, Any]:
        """For the report: the present state, with what has served a call so far."""
        found: dict[str, Any] = {"state": self.state}
        if self.state != "on":
            return {**found, "reason": self.reason}
        found |= {"flag_gems": self.version, "replaced": sorted(self.replaced), "left_out": sorted(self.left_out)}
        found["refused"] = dict(self.refused)
        if self.record is not None:
            found["served"] = self.record.served()
            found["record"] = str(self.record.path) if self.record.path else None
        return found


def replace_aten(config: Config, *, rank: int = 0) -> AtenReplacement:
    """Register FlagGems' kernels for ATen's operators in this process, for good, as the settings say.

    Call it where operators run, never in a launcher: FlagGems initialises the device when it is imported.

    Args:
        config: the settings; ``flagos_aten`` turns it on.
        rank: of this process, part of the record's name.

    Raises:
        ConfigError: a list names what FlagGems does not have, the lists leave nothing, or the record cannot be written;
            under ``strict`` also when FlagGems cannot be used. Then nothing is registered.
    """
    if not config.flagos_aten:
        return AtenReplacement("off", "flagos_aten is off, its default")
    reason, offers = offered()
    if reason is not None:
        if config.policy.strict:
            where = config.origins.get("flagos_aten", "flagos_aten")
            raise ConfigError(f"{where}: strict, and ATen's operators cannot be replaced: {reason}")
        logger.warning("ATen's operators stay PyTorch's own: %s", reason)
        return AtenReplacement("unavailable", reason)
    chosen = chosen_offers(offers, config)
    from fl_dispatch.adapters import installed_version
    from fl_dispatch.aten_library import register
    from fl_dispatch.aten_record import AtenRecord

    record = None
    if config.flagos_record is not None or config.report is not None:
        record = AtenRecord(config.flagos_record, rank, config.origins.get("flagos_record", "flagos_record"))
    replaced, refused = register(chosen, record)
    left_out = tuple(offer.key for offer in offers if offer not in chosen)
    version = installed_version("flag-gems")
    if refused:
        listed = "; ".join(f"{key}: {error}" for key, error in refused.items())
        logger.warning("%d of FlagGems' operators were not registered: %s", len(refused), listed)
    logger.info(
        "%d ATen operators are FlagGems' from now on, %d were left out by the lists", len(replaced), len(left_out)
    )
    return AtenReplacement("on", "", version, replaced, left_out, refused, record)


def offered() -> tuple[str | None, tuple[Offer, ...]]:
    """What FlagGems would register here, or the reason why it cannot be used. Imports FlagGems, registers nothing."""
    from fl_dispatch.backends.flagos import import_fault

    reason = import_fault()
    if reason is not None:
        return reason, ()
    from fl_dispatch.aten_library import ask_flag_gems

    try:
        offers = ask_flag_gems()
    except Exception as error:  # noqa: BLE001  (a probe of whatever FlagGems is installed; the exception is the reason)
        return f"flag_gems.enable failed: {type(error).__name__}: {error}".splitlines()[0], ()
    if not offers:
        return "flag_gems.enable registers no operator here", ()
    return None, offers


def chosen_offers(offers: tuple[Offer, ...], config: Config) -> tuple[Offer, ...]:
    """Those that the lists let through; raises ConfigError for a name that none of them has, or when none is left."""
    known = {name for offer in offers for name in (offer.key, offer.function)}
    for setting, names in (
        ("flagos_whitelist", config.flagos_whitelist or frozenset()),
        ("flagos_blacklist", config.flagos_blacklist),
    ):
        for name in sorted(names - known):
            where = config.origins.get(setting, setting)
            hint = did_you_mean(name, known)
            if name in ops.STANDARD_OPERATORS:
                hint = "it is an operator of layers, which oot_whitelist and oot_blacklist name"
            elif hint.startswith("known: "):
                hint = "`fl-dispatch doctor --verbose` lists what it has"
            raise ConfigError(f"{where}: FlagGems replaces no ATen operator {name!r} here; {hint}")
    white, black = config.flagos_whitelist, config.flagos_blacklist
    chosen = tuple(
        offer for offer in offers if (white is None or offer.is_called(white)) and not offer.is_called(black)
    )
    if not chosen:
        raise ConfigError(
            "flagos_aten is on, but flagos_whitelist and flagos_blacklist leave no ATen operator to replace; "
            "turn it off, or shorten the black list"
        )
    return chosen
