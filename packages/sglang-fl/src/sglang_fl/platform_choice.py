# SPDX-License-Identifier: Apache-2.0
"""Whether this machine needs a platform from us, and for which device. Safe to ask in the launcher: no device is initialised.

SGLang logs and ignores what raises here, and refuses to choose between two platforms: so nothing raises, and one answer is
given.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from fl_dispatch import DevicePlatform, FLDispatchError, PlatformRecord, device_platforms, load_config

logger = logging.getLogger("sglang_fl")

#: The only platform entry point of this distribution: SGLang skips every hook of a distribution that offers a platform
#: other than the selected one, so a second name would switch our operators off.
ENTRY_POINT = "sglang_fl"

PLATFORM_CLASS = "sglang_fl.platform.DispatchPlatform"

#: Plain PyTorch on any processor, without the kernels that SGLang's own CPU engine needs.
CPU = DevicePlatform(
    device_type="cpu",
    present=lambda: True,
    distributed_backend="gloo",
    dispatch_key="CPU",
    attention_backend="torch_native",
    server_args={"sampling_backend": "pytorch"},
)


def platform_class_name() -> str | None:
    """The class where this machine has a device that SGLang does not know, or no accelerator; None leaves the field to SGLang.

    A device with a platform of SGLang's own stays with that unless ``SGLANG_PLATFORM`` names us, and so does SGLang's own CPU
    engine (``SGLANG_USE_CPU_ENGINE=1``).
    """
    return PLATFORM_CLASS if chosen_facts() is not None else None


def chosen_facts() -> DevicePlatform | None:
    """The facts behind ``PLATFORM_CLASS`` in this process; None where the field is SGLang's."""
    asked = os.environ.get("SGLANG_PLATFORM") == ENTRY_POINT
    records = _records()
    facts = first_usable(records) or CPU
    reason = _left_to_sglang(facts, asked)
    if reason is None:
        return facts
    if asked:
        _explain(records, reason)
    else:
        logger.debug("sglang-fl: no platform from us: %s", reason)
    return None


def first_usable(records: Sequence[PlatformRecord]) -> DevicePlatform | None:
    """The facts of the first vendor, by name, whose device is here; None: there is none."""
    usable = [record for record in records if record.usable]
    if len(usable) > 1:
        logger.warning(
            "sglang-fl: several vendors have a device here (%s); taking %s, deny the others with SGLANG_FL_DENY_VENDORS",
            ", ".join(record.vendor for record in usable),
            usable[0].vendor,
        )
    return usable[0].platform if usable else None


def told(records: Sequence[PlatformRecord]) -> str:
    """Why none of them has a device here, a line each."""
    lines = [f"  {record.vendor} ({record.distribution} {record.version}): {record.reason}" for record in records]
    return "\n".join(lines or ["  no vendor package is installed"])


def _records() -> tuple[PlatformRecord, ...]:
    try:
        return device_platforms(load_config("SGLANG_FL_").policy)
    except FLDispatchError:
        return ()  # the plug-in raises it


def _left_to_sglang(facts: DevicePlatform, asked: bool) -> str | None:
    """Why SGLang keeps its own platform beside a device with these facts, or None."""
    import torch

    device = facts.device_type
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if facts is CPU:
        # Not even on request: there is a device here, and nobody's facts about it.
        if accelerator is not None:
            return f"this machine has a {accelerator.type} device, and no vendor package gives facts about it"
    elif asked:
        return None
    elif device != "cpu" and _known_to_sglang(device):
        return f"SGLang has a platform of its own for {device}; SGLANG_PLATFORM={ENTRY_POINT} takes the vendor's facts"
    elif accelerator is not None and accelerator.type != device:
        return f"this machine has a {accelerator.type} device beside the {device}; SGLANG_PLATFORM={ENTRY_POINT} takes that"
    if device == "cpu" and os.environ.get("SGLANG_USE_CPU_ENGINE") == "1" and not asked:
        return "SGLANG_USE_CPU_ENGINE=1 asks for SGLang's own CPU engine"
    return None


def _known_to_sglang(device: str) -> bool:
    """SGLang's list of the platforms in its tree: its code asks for those by name in many places."""
    from sglang.srt.platforms.device_mixin import PlatformEnum

    return device.upper() in PlatformEnum.__members__


def _explain(records: tuple[PlatformRecord, ...], reason: str) -> None:
    """SGLang will stop and say that we have no platform: say why."""
    logger.warning(
        "sglang-fl: SGLANG_PLATFORM=%s asks for a platform from us, but %s\n%s",
        ENTRY_POINT,
        reason,
        told(records),
    )
