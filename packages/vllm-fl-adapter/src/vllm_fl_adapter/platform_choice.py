# SPDX-License-Identifier: Apache-2.0
"""Which platform of ours vLLM gets, if any. Safe to ask in the launcher: no vLLM, no torch, no device.

vLLM ignores what raises here and refuses to choose between two platforms: so nothing raises, and one answer is given.
"""

from __future__ import annotations

import logging
import os

from fl_dispatch import DevicePlatform, FLDispatchError, device_platforms, load_config

logger = logging.getLogger("vllm.fl_adapter")

#: Name of the entry point that is only active where VLLM_PLUGINS lists it.
CPU_ENTRY_POINT = "vllm_fl_cpu"
_PLATFORM = "vllm_fl_adapter.platform.DispatchPlatform"

#: vLLM's own CPU engine behind a platform outside of vLLM. Its worker asks for a memory pool unless the platform is "cpu".
CPU = DevicePlatform(
    device_type="cpu",
    present=lambda: True,
    distributed_backend="gloo",
    dispatch_key="CPU",
    classes={
        "vllm.platform": "vllm.platforms.cpu.CpuPlatform",
        "vllm.worker": "vllm_fl_adapter.cpu_worker.CpuWorker",
        "vllm.attention": "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend",
    },
)


def cpu_platform() -> str | None:
    """The example platform, only where the user lists its entry point in VLLM_PLUGINS."""
    return _PLATFORM if cpu_is_asked_for() else None


def vendor_platform() -> str | None:
    """The platform of the first installed vendor that gives facts about a device that is here."""
    if cpu_is_asked_for():
        return None
    return _PLATFORM if vendor_facts() is not None else None


def cpu_is_asked_for() -> bool:
    """Whether VLLM_PLUGINS lists the example platform."""
    return CPU_ENTRY_POINT in [word.strip() for word in os.environ.get("VLLM_PLUGINS", "").split(",")]


def chosen_facts() -> DevicePlatform:
    """The facts behind ``vllm_fl_adapter.platform.DispatchPlatform`` in this process."""
    facts = CPU if cpu_is_asked_for() else vendor_facts()
    if facts is None:
        raise ImportError("no installed vendor package has a platform for this machine")
    return facts


def vendor_facts() -> DevicePlatform | None:
    """The facts of the first allowed vendor whose device is present and who names a worker for it: there is none in vLLM
    for a device that vLLM does not know."""
    try:
        records = device_platforms(load_config("VLLM_FL_").policy)
    except FLDispatchError:
        return None  # load_plugin raises it
    for record in records:
        if record.reason:
            logger.debug("no platform of vendor %s: %s", record.vendor, record.reason)
        elif record.platform is not None and "vllm.worker" not in record.platform.classes:
            logger.debug("no platform of vendor %s: its facts name no class for 'vllm.worker'", record.vendor)
    usable = [r for r in records if r.usable and r.platform is not None and "vllm.worker" in r.platform.classes]
    if len(usable) > 1:
        logger.warning(
            "several vendors have a device here (%s); taking %s, deny the others with VLLM_FL_DENY_VENDORS",
            ", ".join(record.vendor for record in usable),
            usable[0].vendor,
        )
    return usable[0].platform if usable else None
