# SPDX-License-Identifier: Apache-2.0
"""SGLang Diffusion's own platform of this device, made to honour our operators.

It only asks for registered forwards on an out-of-tree platform. Ours is a subclass of its own one that says so, and answers
every other question as that one does: no branch of SGLang for the device is lost.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

from sglang.multimodal_gen.runtime.platforms import PlatformEnum, builtin_platform_plugins

from sglang_fl.diffusion.backend import initialise
from sglang_fl.diffusion.choice import device_facts

#: Questions that SGLang answers from the enumeration value, which is OOT here.
_IDENTITY = ("is_cuda", "is_rocm", "is_tpu", "is_cpu", "is_cuda_alike", "is_mps", "is_xpu", "is_npu", "is_musa")
#: What it answers otherwise for, or demands of, a platform out of tree.
_OPERATIONS = ("get_device", "get_torch_distributed_backend_str", "supports_distributed_device_id")
#: SGLang's order of preference where a layer has a method for the device.
_KEYS = (
    ("is_cuda", "cuda"),
    ("is_rocm", "hip"),
    ("is_npu", "npu"),
    ("is_xpu", "xpu"),
    ("is_musa", "musa"),
    ("is_cpu", "cpu"),
)


def own_class() -> Any:
    """SGLang's own platform for this machine, as it detects it."""
    for detect in builtin_platform_plugins.values():
        name = detect()
        if name is not None:
            return resolve_name(name)
    raise RuntimeError("SGLang Diffusion finds no platform of its own on this machine; leave the selection to it")


def dispatching(own: Any) -> Any:
    """A subclass of ``own``, a platform class of SGLang's, that is out of tree to SGLang's layers and ``own`` otherwise."""
    before = own()

    class DispatchPlatform(own):
        _enum = PlatformEnum.OOT
        # What SGLang registers its torch.library operators with on this device.
        dispatch_key = before.get_torch_library_dispatch_key()

        def init_backend(self) -> None:
            """SGLang's own set-up, then that of the vendor with facts about this device, then our operators."""
            super().init_backend()
            facts = device_facts()
            here = facts is not None and facts.device_type == self.device_type
            initialise(self, facts.setup if facts is not None and here else None)

        def get_dispatch_key_name(self) -> str:
            """The layers that we leave, and single calls, run SGLang's method for the device."""
            return next((key for question, key in _KEYS if getattr(before, question)()), "native")

        def get_compile_backend(self, mode: str | None = None) -> Any:
            """SGLang only asks platforms out of tree; here is what it takes itself for its own."""
            if not before.is_npu():
                return super().get_compile_backend(mode)
            from sglang.srt.utils.common import get_compiler_backend

            return get_compiler_backend()

        @classmethod
        def is_cuda_static(cls) -> bool:
            return bool(own.is_cuda_static())

        @classmethod
        def is_rocm_static(cls) -> bool:
            return bool(own.is_rocm_static())

        @classmethod
        def get_all_to_all_communicator_cls(cls) -> str:
            return str(own.get_all_to_all_communicator_cls())

    for name in (*_IDENTITY, *_OPERATIONS):
        setattr(DispatchPlatform, name, _as_before(before, name))
    return DispatchPlatform


def _as_before(before: Any, name: str) -> Any:
    method = getattr(before, name)

    def answer(self: Any, *args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    answer.__name__ = name
    return answer


DispatchPlatform = dispatching(own_class())
