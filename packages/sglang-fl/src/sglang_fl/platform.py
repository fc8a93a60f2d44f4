# SPDX-License-Identifier: Apache-2.0
"""A CPU platform for SGLang: plain PyTorch on any processor, without the kernels SGLang's own CPU engine needs."""

from __future__ import annotations

import gc
import platform as host
from typing import Any, ClassVar

import psutil
import torch
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform

from sglang_fl.plugin import installed

#: What a user most likely wants on a CPU; applied only where the user said nothing.
_SERVER_DEFAULTS = {"device": "cpu", "attention_backend": "torch_native", "sampling_backend": "pytorch"}


class _MemoryClasses:
    """Up to SGLang 0.5.21 a platform outside the tree has to name the memory classes, also when they are SGLang's own."""

    def get_mha_kv_pool_cls(self) -> Any:
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

        return MHATokenToKVPool

    def get_mla_kv_pool_cls(self) -> Any:
        from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool

        return MLATokenToKVPool

    def get_paged_allocator_cls(self) -> Any:
        from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator

        return PagedTokenToKVPoolAllocator


class _NoMemoryClasses:
    """From 0.5.22 on, not to answer means SGLang's own classes; answering the old questions earns a warning."""


_Memory: type = _NoMemoryClasses if hasattr(SRTPlatform, "get_kv_pool_cls") else _MemoryClasses


class CpuPlatform(_Memory, SRTPlatform):
    """``device_type`` cpu, attention ``torch_native``, collectives over gloo, no graphs."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    supported_quantization: ClassVar[list[str]] = []

    # -- start-up

    def apply_server_args_defaults(self, server_args: Any) -> None:
        for name, value in _SERVER_DEFAULTS.items():
            if getattr(server_args, name, None) is None:
                setattr(server_args, name, value)

    def init_backend(self) -> None:
        """Called in each worker. Our platform without our operators is not what anybody asked for: stop and say why."""
        if installed() is None:
            raise SystemExit(
                "sglang-fl: its platform is active but SGLang did not load its hooks, so no operator would be dispatched. "
                "SGLANG_PLUGINS probably leaves out 'sglang_fl': add it, or select another platform with SGLANG_PLATFORM"
            )

    # -- device

    def get_device(self, device_id: int = 0) -> torch.device:
        return torch.device("cpu")

    def set_device(self, device: Any) -> None:
        """Nothing to do: there is one CPU device."""

    def get_device_name(self, device_id: int = 0) -> str:
        return f"cpu ({host.machine()})"

    def get_device_uuid(self, device_id: int = 0) -> str:
        return host.node() or "cpu"

    def get_device_capability(self, device_id: int = 0) -> None:
        return None

    def get_device_total_memory(self, device_id: int = 0) -> int:
        """Bytes of memory of the whole machine."""
        return int(psutil.virtual_memory().total)

    def get_current_memory_usage(self, device: Any = None) -> float:
        """Bytes in use on the whole machine: SGLang takes total minus this for what is free."""
        memory = psutil.virtual_memory()
        return float(memory.total - memory.available)

    def get_available_memory(self, device_id: int = 0) -> tuple[int, int]:
        """(free, total) in bytes."""
        memory = psutil.virtual_memory()
        return int(memory.available), int(memory.total)

    def is_pin_memory_available(self, device: Any = None) -> bool:
        return False

    def empty_cache(self) -> None:
        gc.collect()

    def synchronize(self) -> None:
        """Nothing to do: CPU work is done when its call returns."""

    def get_torch_distributed_backend_str(self) -> str:
        return "gloo"

    def get_torch_profiler_activity_str(self) -> str:
        return "CPU"

    def get_torch_profiler_activity(self) -> Any:
        return torch.profiler.ProfilerActivity.CPU

    # -- subsystems

    def get_default_attention_backend(self) -> str:
        return "torch_native"

    def get_dispatch_key_name(self) -> str:
        return "native"

    def support_cuda_graph(self) -> bool:
        """Asked before SGLang 0.5.22; later versions read ``capabilities``, whose defaults say the same."""
        return False

    def support_piecewise_cuda_graph(self) -> bool:
        return False
