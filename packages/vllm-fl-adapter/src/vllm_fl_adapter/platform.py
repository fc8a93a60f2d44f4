# SPDX-License-Identifier: Apache-2.0
"""The platform that vLLM gets from us: the facts of a vendor's ``DevicePlatform``, as vLLM asks for them."""

from __future__ import annotations

from typing import Any

import torch
from vllm.platforms.interface import PlatformEnum
from vllm.utils.import_utils import resolve_obj_by_qualname

from vllm_fl_adapter.platform_choice import chosen_facts

FACTS = chosen_facts()
_CLASSES = FACTS.classes

#: The class of vLLM that knows most of the device; vLLM's general one where the vendor names none.
_Base: Any = resolve_obj_by_qualname(_CLASSES.get("vllm.platform", "vllm.platforms.interface.Platform"))


class DispatchPlatform(_Base):
    """Out of tree to vLLM, whatever it is built on: its layers ask for ``forward_oot``."""

    _enum = PlatformEnum.OOT
    device_name = FACTS.device_type
    device_type = FACTS.device_type
    dispatch_key = FACTS.dispatch_key
    dist_backend = FACTS.distributed_backend

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

    @staticmethod
    def current_stream() -> Any:
        """The device's current stream; none on a CPU."""
        module = getattr(torch, FACTS.device_type, None)
        stream = getattr(module, "current_stream", None)
        return stream() if stream is not None else None


def _nothing(*args: Any, **kwargs: Any) -> None:
    """There is no cache of device memory."""
