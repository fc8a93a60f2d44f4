# SPDX-License-Identifier: Apache-2.0
"""The platform that vLLM gets from us: the facts of a vendor's ``DevicePlatform``, as vLLM asks for them."""

from __future__ import annotations

from typing import Any

import torch
from vllm.platforms.interface import DeviceCapability, PlatformEnum
from vllm.utils.import_utils import resolve_obj_by_qualname

from fl_dispatch import Device
from vllm_fl_adapter.platform_choice import chosen_facts

FACTS = chosen_facts()
DEVICE = Device(FACTS)
_CLASSES = FACTS.classes
#: vLLM's general class knows nothing of any device; another one is only contradicted where the facts say something.
_GENERAL = "vllm.platform" not in _CLASSES

#: The class of vLLM that knows most of the device; vLLM's general one where the vendor names none.
_Base: Any = resolve_obj_by_qualname(_CLASSES.get("vllm.platform", "vllm.platforms.interface.Platform"))


class DispatchPlatform(_Base):
    """Out of tree to vLLM, whatever it is built on: its layers ask for ``forward_oot``."""

    _enum = PlatformEnum.OOT
    device_name = FACTS.device_type
    device_type = FACTS.device_type
    dispatch_key = FACTS.dispatch_key
    dist_backend = FACTS.distributed_backend
    if FACTS.quantization:
        supported_quantization = list(FACTS.quantization)
    if _GENERAL:
        simple_compile_backend = FACTS.compile_backend

    def __init__(self) -> None:
        super().__init__()
        if FACTS.device_type == "cpu":
            # What vLLM does in its CPU worker; elsewhere it takes a platform outside of it for an accelerator.
            torch.accelerator.empty_cache = _nothing

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Put the vendor's worker in, unless the user asks for another one."""
        parallel = vllm_config.parallel_config
        if parallel.worker_cls == "auto" and "vllm.worker" in _CLASSES:
            parallel.worker_cls = _CLASSES["vllm.worker"]
        super().check_and_update_config(vllm_config)

    @classmethod
    def get_attn_backend_cls(cls, selected_backend: Any, *args: Any, **kwargs: Any) -> str:
        """The vendor's attention, unless the user asks for another one."""
        if selected_backend is None and "vllm.attention" in _CLASSES:
            return _CLASSES["vllm.attention"]
        return str(super().get_attn_backend_cls(selected_backend, *args, **kwargs))

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """The vendor's collectives."""
        return _CLASSES.get("vllm.communicator") or str(super().get_device_communicator_cls())

    @classmethod
    def support_static_graph_mode(cls) -> bool:
        """Whether vLLM may capture device graphs."""
        return FACTS.graphs

    @classmethod
    def get_static_graph_wrapper_cls(cls) -> str:
        """The vendor's wrapper of captured graphs."""
        return _CLASSES.get("vllm.graph_wrapper") or str(super().get_static_graph_wrapper_cls())

    @staticmethod
    def current_stream() -> Any:
        """The device's current stream; none on a CPU."""
        return DEVICE.optional("current_stream")

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        """For people."""
        known = _GENERAL or FACTS.device_name is not None
        return DEVICE.name(device_id) if known else str(super().get_device_name(device_id))

    @classmethod
    def get_device_uuid(cls, device_id: int = 0) -> str:
        """What tells the device from others."""
        return DEVICE.uuid(device_id) if _GENERAL else str(super().get_device_uuid(device_id))

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> DeviceCapability | None:
        """(major, minor), where the vendor says that there is one."""
        if FACTS.device_capability is None:
            return super().get_device_capability(device_id)
        found = DEVICE.capability(device_id)
        return DeviceCapability(*found) if found is not None else None

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """Bytes."""
        known = _GENERAL or FACTS.memory is not None
        return DEVICE.memory(device_id)[1] if known else int(super().get_device_total_memory(device_id))

    @classmethod
    def get_current_memory_usage(cls, device: Any = None) -> float:
        """Bytes in use by anybody."""
        if not _GENERAL and FACTS.memory is None:
            return float(super().get_current_memory_usage(device))
        index = getattr(device, "index", device)
        free, total = DEVICE.memory(index if isinstance(index, int) else DEVICE.current_index())
        return float(total - free)

    @classmethod
    def set_device(cls, device: Any) -> None:
        """Make it the current device of the thread."""
        if _GENERAL:
            DEVICE.select(device)
        else:
            super().set_device(device)

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """Seed the generators of all devices of this kind."""
        if _GENERAL:
            DEVICE.seed(seed)
        else:
            super().manual_seed_all(seed)

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        """Whether host memory can be pinned for the device."""
        return FACTS.pin_memory if _GENERAL else bool(super().is_pin_memory_available())

    @classmethod
    def supports_fp8(cls) -> bool:
        """Whether the device computes with 8-bit floating point numbers."""
        return FACTS.fp8 if _GENERAL else bool(super().supports_fp8())


def _nothing(*args: Any, **kwargs: Any) -> None:
    """There is no cache of device memory."""
