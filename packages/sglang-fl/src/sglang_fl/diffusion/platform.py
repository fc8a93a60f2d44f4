# SPDX-License-Identifier: Apache-2.0
"""The platform that SGLang Diffusion gets from us for a device it does not know: a vendor's ``DevicePlatform``, as it asks.

The sections are those of SGLang's contract. What is not here keeps SGLang's default.
"""

from __future__ import annotations

from typing import Any

from sglang.multimodal_gen import envs
from sglang.multimodal_gen.runtime.platforms import AttentionBackendEnum, Platform, PlatformEnum
from sglang.multimodal_gen.runtime.platforms.cpu import CpuPlatform
from sglang.multimodal_gen.runtime.platforms.interface import CpuArchEnum, DeviceCapability

from fl_dispatch import Device, DevicePlatform
from sglang_fl.diffusion.backend import initialise
from sglang_fl.diffusion.choice import device_facts

_GIB = 1 << 30
_COMMUNICATORS = "sglang.multimodal_gen.runtime.distributed.device_communicators"
_SDPA = "sglang.multimodal_gen.runtime.layers.attention.backends.sdpa.SDPABackend"


class DispatchPlatform(Platform):
    """Out of tree to SGLang, whatever the device.

    Args:
        facts: the device's; those of the vendor whose device is here when None.
    """

    _enum = PlatformEnum.OOT

    def __init__(self, facts: DevicePlatform | None = None) -> None:
        facts = facts or device_facts()
        if facts is None:
            raise RuntimeError(
                "sglang-fl: its diffusion platform was built, and no vendor package has a device here; "
                "`fl-dispatch doctor` lists the vendors with the reasons"
            )
        self.facts = facts
        self.device = Device(self.facts)
        self.device_name = self.device_type = self.facts.device_type
        # torch's key, for SGLang's own torch.library operators; not the name that layers go by, below.
        self.dispatch_key = self.facts.dispatch_key
        self.simple_compile_backend = self.facts.compile_backend

    def is_cpu(self) -> bool:
        """A vendor's CPU takes SGLang's branches for CPUs, which are plain PyTorch; its others start Triton."""
        return bool(self.device_type == "cpu")

    # -- initialisation and configuration

    def init_backend(self) -> None:
        """In each worker, before anything of the model is imported; what it raises aborts the start."""
        initialise(self, self.facts.setup)

    def apply_server_args_defaults(self, server_args: Any) -> None:
        """The vendor's function of the name ``sglang.diffusion.server_args``, where it names one."""
        apply = self.facts.named_class("sglang.diffusion.server_args")
        if apply is not None:
            apply(server_args)

    # -- device and memory

    def get_device(self, local_rank: int) -> Any:
        return self.device.at(local_rank)

    def get_local_torch_device(self) -> Any:
        return self.device.at(envs.LOCAL_RANK)

    def set_device(self, device: Any) -> None:
        self.device.select(device)

    def synchronize(self) -> None:
        self.device.synchronize()

    def empty_cache(self) -> None:
        self.device.empty_cache()

    def get_device_name(self, device_id: int = 0) -> str:
        return self.device.name(device_id)

    def get_device_uuid(self, device_id: int = 0) -> str:
        return self.device.uuid(device_id)

    def get_device_capability(self, device_id: int = 0) -> DeviceCapability | None:
        found = self.device.capability(device_id)
        return DeviceCapability(*found) if found is not None else None

    def has_device_capability(self, capability: Any, device_id: int = 0) -> bool:
        """Of the base a class method; here the answer is the facts', which the object has."""
        found = self.get_device_capability(device_id)
        wanted = DeviceCapability(*capability) if isinstance(capability, tuple) else capability
        return found is not None and (found >= wanted if isinstance(wanted, tuple) else found.to_int() >= wanted)

    def get_device_total_memory(self, device_id: int = 0) -> int:
        """Bytes; of the whole machine for a CPU."""
        return self.device.memory(device_id)[1]

    def get_current_memory_usage(self, device: Any = None) -> float:
        """Bytes in use by anybody."""
        index = getattr(device, "index", device)
        free, total = self.device.memory(self.device.current_index() if index is None else index)
        return float(total - free)

    def get_available_gpu_memory(
        self, device_id: int | None = None, distributed: bool = False, empty_cache: bool = True, cpu_group: Any = None
    ) -> float:
        """GiB that are free; with ``distributed`` the least of the group's."""
        if empty_cache:
            self.empty_cache()
        free = self.device.memory(self.device.current_index() if device_id is None else device_id)[0] / _GIB
        if not distributed:
            return free
        import torch

        least = torch.tensor(free, dtype=torch.float64)
        torch.distributed.all_reduce(least, op=torch.distributed.ReduceOp.MIN, group=cpu_group)
        return float(least)

    def tensor_on_device(self, t: Any) -> bool:
        return bool(t.device.type == self.device_type)

    # -- distributed

    def get_torch_distributed_backend_str(self) -> str:
        return self.facts.distributed_backend

    def get_all_to_all_communicator_cls(self) -> str:
        """SGLang's general one, with torch.distributed's collectives, unless the vendor names its own."""
        default = (
            "cpu_communicator.CpuCommunicator" if self.is_cpu() else "base_device_communicator.DeviceCommunicatorBase"
        )
        return self.facts.classes.get("sglang.diffusion.communicator", f"{_COMMUNICATORS}.{default}")

    def get_cpu_architecture(self) -> CpuArchEnum:
        return CpuPlatform.get_cpu_architecture()

    # -- dispatch and model

    def get_dispatch_key_name(self) -> str:
        """What SGLang looks registered forwards up by, and ``forward_<name>`` of layers that have none."""
        return self.facts.native_forward

    def get_attn_backend_cls_str(
        self, selected_backend: AttentionBackendEnum | None, head_size: int, dtype: Any
    ) -> str:
        """The vendor's attention class where the user asks for none by name; else PyTorch's.

        Raises:
            ValueError: a backend is asked for by name that is not PyTorch's.
        """
        if selected_backend not in (None, AttentionBackendEnum.TORCH_SDPA):
            raise ValueError(
                f"sglang-fl: attention backend {selected_backend} is not known to work on {self.device_type}; "
                "leave it out, or ask for torch_sdpa"
            )
        named = self.facts.classes.get("sglang.diffusion.attention")
        return named if named is not None and selected_backend is None else _SDPA

    # -- execution

    def seed_everything(self, seed: int | None = None) -> None:
        """SGLang's, which also asks torch for the current accelerator; then the vendor's module for the device."""
        super().seed_everything(seed)
        if seed is not None:
            self.device.seed(seed)

    def enable_dit_layerwise_offload_by_default(self) -> bool:
        """Not without being asked for: it copies on streams of a kind that the device need not have."""
        return False
