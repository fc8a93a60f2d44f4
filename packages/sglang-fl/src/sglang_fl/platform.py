# SPDX-License-Identifier: Apache-2.0
"""The platform that SGLang gets from us: the facts of a vendor's ``DevicePlatform``, as SGLang asks for them.

The sections are those of SGLang's interface. Methods of one generation alone are harmless in the other. What is not here
keeps SGLang's default.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, ClassVar

from sglang.srt.platforms.device_mixin import DeviceCapability, PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform

from fl_dispatch import Device, DevicePlatform
from sglang_fl.platform_choice import CPU, chosen_facts
from sglang_fl.platform_subsystems import Subsystems
from sglang_fl.plugin import installed
from sglang_fl.versions import installed_version, release

logger = logging.getLogger("sglang_fl")

#: Loaded in every process of SGLang Diffusion.
_DIFFUSION = "sglang.multimodal_gen.runtime.platforms"


class DispatchPlatform(Subsystems, SRTPlatform):
    """Out of tree to SGLang, whatever the device: its layers ask for our operators or for ``forward_<native_forward>``.

    Args:
        facts: the device's; those that were chosen for this process when None.
    """

    _enum = PlatformEnum.OOT
    _initialised: ClassVar[bool] = False

    def __init__(self, facts: DevicePlatform | None = None) -> None:
        self.facts = facts or chosen_facts() or CPU
        self.device = Device(self.facts)
        self.device_name = self.device_type = self.facts.device_type
        self.supported_quantization = list(self.facts.quantization)
        self.capabilities = self.capability_flags()

    # -- life cycle

    def apply_server_args_defaults(self, server_args: Any) -> None:
        """Only where the user said nothing, which SGLang's arguments show as None."""
        wanted = {
            "device": self.device_type,
            "attention_backend": self.facts.attention_backend,
            **self.facts.server_args,
        }
        for name, value in wanted.items():
            if not hasattr(server_args, name):
                logger.warning(
                    "sglang-fl: this SGLang has no server argument %r, which the facts of %s set", name, self
                )
            elif getattr(server_args, name) is None:
                setattr(server_args, name, value)
            elif name in self.facts.server_args and getattr(server_args, name) != value:
                logger.info("sglang-fl: %s stays %r, not %r", name, getattr(server_args, name), value)

    def init_backend(self) -> None:
        """Called in each worker. Our platform without our operators is not what anybody asked for: stop and say why."""
        if installed() is None:
            if _DIFFUSION in sys.modules:
                return  # it imports the model runner too, loads no hook of this runtime, and sets its own platform up
            raise SystemExit(
                "sglang-fl: its platform is active but SGLang did not load its hooks, so no operator would be dispatched. "
                "SGLANG_PLUGINS probably leaves out 'sglang_fl': add it, or select another platform with SGLANG_PLATFORM"
            )
        if DispatchPlatform._initialised:
            return
        DispatchPlatform._initialised = True
        _spare_rotary_layers()
        if self.facts.setup is not None:
            self.facts.setup()

    # -- device

    def get_device(self, device_id: int | None = None) -> Any:
        """torch's device of an index; without one the name alone, which is what the server's arguments hold."""
        return self.device_type if device_id is None else self.device.at(device_id)

    def set_device(self, device: Any) -> None:
        self.device.select(device)

    def get_device_name(self, device_id: int = 0) -> str:
        return self.device.name(device_id)

    def get_device_uuid(self, device_id: int = 0) -> str:
        return self.device.uuid(device_id)

    def get_device_capability(self, device_id: int = 0) -> DeviceCapability | None:
        found = self.device.capability(device_id)
        return DeviceCapability(*found) if found is not None else None

    def empty_cache(self) -> None:
        self.device.empty_cache()

    def synchronize(self) -> None:
        self.device.synchronize()

    def seed_everything(self, seed: int | None = None) -> None:
        """Of the base a class method; SGLang calls it on the platform."""
        super().seed_everything(seed)
        if seed is not None:
            self.device.seed(seed)

    # -- memory

    def get_device_total_memory(self, device_id: int = 0) -> int:
        """Bytes; of the whole machine for a CPU."""
        return self.device.memory(device_id)[1]

    def get_current_memory_usage(self, device: Any = None) -> float:
        """Bytes in use by anybody: SGLang takes total minus this for what is free."""
        index = getattr(device, "index", device)
        free, total = self.device.memory(self.device.current_index() if index is None else index)
        return float(total - free)

    def get_available_memory(self, device_id: int = 0) -> tuple[int, int]:
        """(free, total) in bytes."""
        return self.device.memory(device_id)

    def is_pin_memory_available(self, device: Any = None) -> bool:
        return self.facts.pin_memory and (device is None or not str(device).startswith("cpu"))

    # -- communicator

    def get_torch_distributed_backend_str(self) -> str:
        return self.facts.distributed_backend

    def get_group_coordinator_device(self, local_rank: int) -> Any:
        return self.device.at(local_rank)

    # -- profiler

    def get_torch_profiler_activity_str(self) -> str:
        return self.facts.profiler_activity

    def get_torch_profiler_activity(self) -> Any:
        import torch

        return getattr(torch.profiler.ProfilerActivity, self.facts.profiler_activity)


def _spare_rotary_layers() -> None:
    """SGLang 0.5.11 and 0.5.12 take a kernel of vLLM into every rotary layer on a device they do not know, and stop where
    there is no vLLM. From 0.5.13 on they ask whether the platform is out of tree; here they are told what has that effect.
    """
    if release(installed_version()) >= (0, 5, 13):
        return
    from sglang.srt.layers.rotary_embedding import base

    base._is_cpu = True
