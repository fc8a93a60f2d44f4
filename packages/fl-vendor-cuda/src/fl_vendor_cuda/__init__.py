# SPDX-License-Identifier: Apache-2.0
"""The standard operators on NVIDIA GPUs, with the kernels of ``sgl_kernel``. A vendor package of ``fl-dispatch``.

Importing this imports neither torch nor sgl_kernel; both are first needed where operators run.
"""

from __future__ import annotations

from fl_dispatch import OpRegistry, Vendor

#: The vendor's name and that of its entry point.
NAME = "cuda"


def register(registry: OpRegistry) -> None:
    """Add the implementations. sgl_kernel is not imported by this, only when one of them is to be used."""
    from fl_vendor_cuda.operators import implementations

    registry.register_many(implementations())


#: What the entry point ``cuda`` of ``fl_dispatch.vendors`` gives.
VENDOR = Vendor(name=NAME, register=register)

__version__ = "0.1.0"
