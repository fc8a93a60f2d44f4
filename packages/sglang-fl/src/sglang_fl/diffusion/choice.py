# SPDX-License-Identifier: Apache-2.0
"""Whether SGLang Diffusion needs a platform from us, and which. Safe to ask in launchers: nothing is initialised.

SGLang honours registered forwards on an out-of-tree platform alone, and skips the hooks of a distribution whose platform is
not the selected one. So on a device that it has a platform for, ours are loaded only where the user names us.
"""

from __future__ import annotations

import logging
import os

from fl_dispatch import DevicePlatform, PlatformRecord, device_platforms, load_config
from sglang_fl.platform_choice import first_usable, told

logger = logging.getLogger("sglang_fl")

#: Our name in both entry-point groups, and the value of ``VARIABLE`` that selects us.
ENTRY_POINT = "sglang_fl"
VARIABLE = "SGLANG_DIFFUSION_PLATFORM_OVERRIDE"

#: From the facts of a vendor, for a device that SGLang has no platform for.
FACTS_PLATFORM = "sglang_fl.diffusion.platform.DispatchPlatform"
#: SGLang's own for the device, given out by us.
OWN_PLATFORM = "sglang_fl.diffusion.own_platform.OwnPlatform"


def platform_class_name() -> str | None:
    """A vendor's device that SGLang does not know is ours by itself; for any other one ``VARIABLE`` has to name us.

    Raises:
        FLDispatchError: the settings are wrong.
    """
    asked = os.environ.get(VARIABLE, "").strip() == ENTRY_POINT
    records = _records()
    facts = first_usable(records)
    if facts is not None and not _has_own_platform(facts):
        beside = None if asked else _other_accelerator(facts)
        if beside is None:
            return FACTS_PLATFORM
        logger.info(
            "sglang-fl: this machine has a %s device beside the %s; %s=%s takes that",
            beside,
            facts.device_type,
            VARIABLE,
            ENTRY_POINT,
        )
    if asked and facts is None and records:
        logger.info(
            "sglang-fl: %s=%s takes SGLang's own platform, as no vendor's device is here\n%s",
            VARIABLE,
            ENTRY_POINT,
            told(records),
        )
    return OWN_PLATFORM if asked else None


def allowed(name: str, plugins: str) -> bool:
    """Whether SGLang loads the hooks of that name with this value of ``SGLANG_PLUGINS``."""
    return not plugins or name in [word.strip() for word in plugins.split(",")]


def device_facts() -> DevicePlatform | None:
    """The facts of the first vendor, by name, whose device is here and that the settings allow; None: there is none.

    Raises:
        FLDispatchError: the settings are wrong.
    """
    return first_usable(_records())


def _records() -> tuple[PlatformRecord, ...]:
    return device_platforms(load_config("SGLANG_FL_").policy)


def _has_own_platform(facts: DevicePlatform) -> bool:
    """Whether SGLang has a platform for the accelerator: its code asks for those by name in many places, so that the facts
    alone would not do. For a CPU they do.
    """
    from sglang.multimodal_gen.runtime.platforms import BUILTIN_PLATFORM_NAMES

    return facts.device_type != "cpu" and facts.device_type in BUILTIN_PLATFORM_NAMES


def _other_accelerator(facts: DevicePlatform) -> str | None:
    """Another kind of accelerator that is here as well."""
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator.type if accelerator is not None and accelerator.type != facts.device_type else None
