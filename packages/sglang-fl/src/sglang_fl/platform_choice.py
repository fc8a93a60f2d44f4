# SPDX-License-Identifier: Apache-2.0
"""Whether this machine needs a platform from us. Safe to ask in the launcher: no device is initialised."""

from __future__ import annotations

import os

#: The only platform entry point of this distribution: SGLang skips every hook of a distribution that offers a platform
#: other than the selected one, so a second name would switch our operators off.
ENTRY_POINT = "sglang_fl"

CPU_PLATFORM = "sglang_fl.platform.CpuPlatform"


def platform_class_name() -> str | None:
    """The CPU platform where there is no accelerator; None leaves the field to SGLang's own or another platform.

    SGLang's built-in CPU engine (``SGLANG_USE_CPU_ENGINE=1``) keeps precedence unless ``SGLANG_PLATFORM`` names us.
    """
    import torch

    if torch.accelerator.is_available():
        return None
    asked_for_us = os.environ.get("SGLANG_PLATFORM") == ENTRY_POINT
    if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1" and not asked_for_us:
        return None
    return CPU_PLATFORM
