# SPDX-License-Identifier: Apache-2.0
"""The standard operators on Ascend NPUs, with the operators of ``torch_npu``. A vendor package of ``fl-dispatch``.

Importing this imports neither torch nor torch_npu; both are first needed where operators run.
"""

from __future__ import annotations

from fl_dispatch import OpRegistry, Vendor
from fl_vendor_ascend.device import NAME, PLATFORM


def register(registry: OpRegistry) -> None:
    """Add the implementations. torch_npu is not imported by this, only when one of them is to be used."""
    from fl_vendor_ascend.operators import implementations

    registry.register_many(implementations())


#: What the entry point ``ascend`` of ``fl_dispatch.vendors`` gives.
VENDOR = Vendor(name=NAME, register=register, platform=PLATFORM)

__version__ = "0.1.0"
