# SPDX-License-Identifier: Apache-2.0
"""SGLang Diffusion's own platform of this device, given out by us, so that SGLang loads our hooks on it.

It skips the hooks of a distribution whose platform is not the selected one. This one is a subclass of SGLang's own that answers
every question as that one does, so no branch of SGLang for the device is lost; the hooks bring the operators.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

from sglang.multimodal_gen.runtime.platforms import PlatformEnum, builtin_platform_plugins

from sglang_fl.diffusion.backend import initialise
from sglang_fl.diffusion.choice import device_facts

#: Questions that SGLang answers from the enumeration value, which is OOT here: it asks that of every platform plug-in.
_IDENTITY = ("is_cuda", "is_rocm", "is_tpu", "is_cpu", "is_cuda_alike", "is_mps", "is_out_of_tree")


def own_class() -> Any:
    """SGLang's own platform for this machine, as it detects it."""
    for detect in builtin_platform_plugins.values():
        name = detect()
        if name is not None:
            return resolve_name(name)
    raise RuntimeError("SGLang Diffusion finds no platform of its own on this machine; leave the selection to it")


def offered(own: Any) -> Any:
    """A subclass of ``own``, a platform class of SGLang's, that it accepts from a plug-in."""
    before = own()

    class OwnPlatform(own):
        _enum = PlatformEnum.OOT

        def init_backend(self) -> None:
            """SGLang's own set-up, then that of the vendor with facts about this device, then ours."""
            super().init_backend()
            facts = device_facts()
            here = facts is not None and facts.device_type == self.device_type
            initialise(self, facts.setup if facts is not None and here else None, registers=False)

        @classmethod
        def is_cuda_static(cls) -> bool:
            return bool(own.is_cuda_static())

        @classmethod
        def is_rocm_static(cls) -> bool:
            return bool(own.is_rocm_static())

        @classmethod
        def get_all_to_all_communicator_cls(cls) -> str:
            return str(own.get_all_to_all_communicator_cls())

    for name in _IDENTITY:
        setattr(OwnPlatform, name, _as_before(before, name))
    return OwnPlatform


def _as_before(before: Any, name: str) -> Any:
    method = getattr(before, name)

    def answer(self: Any) -> Any:
        return method()

    answer.__name__ = name
    return answer


OwnPlatform = offered(own_class())
