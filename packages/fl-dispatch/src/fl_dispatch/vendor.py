# SPDX-License-Identifier: Apache-2.0
"""``Vendor``: what an entry point of the group ``fl_dispatch.vendors`` may be, besides a ``register(registry)``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fl_dispatch.registry import OpRegistry

#: Versions of the vendor interface this core understands. A bare ``register(registry)`` function is version 1.
SUPPORTED_API_VERSIONS = (1,)

#: The entry-point group vendor distributions register in.
VENDOR_GROUP = "fl_dispatch.vendors"


@dataclass(frozen=True)
class DevicePlatform:
    """What a framework has to know about a device that it does not know. An adapter makes the framework's platform of it.

    Args:
        device_type: torch's name of it, for example ``"npu"``.
        present: whether this machine has one; True, or False, or a reason why not. Asked in launchers too: it may look for
            device files, and must not create a device context or import the SDK.
        distributed_backend: of torch.distributed, for example ``"hccl"``.
        dispatch_key: torch's dispatch key of it.
        graphs: device graphs can be captured.
        classes: dotted names of classes by what they are for, for example ``"vllm.worker"``, ``"vllm.attention"``; which
            there are is in each adapter's documentation.
    """

    device_type: str
    present: Callable[[], bool | str]
    distributed_backend: str
    dispatch_key: str = "PrivateUse1"
    graphs: bool = False
    classes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), hash=False)


@dataclass(frozen=True)
class Vendor:
    """A vendor's distribution.

    Args:
        name: the vendor's name; must equal the entry point's name.
        register: adds the vendor's implementations to a registry. It must not import the vendor's SDK.
        api_version: version of this interface the distribution was written for.
        platform: facts about the device, where frameworks do not know it.
    """

    name: str
    register: Callable[[OpRegistry], None]
    api_version: int = 1
    platform: DevicePlatform | None = None
