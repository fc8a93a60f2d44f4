# SPDX-License-Identifier: Apache-2.0
"""Where SGLang decides which method a fused operator runs: the seam we hook.

Up to 0.5.17 ``MultiPlatformOp.dispatch_forward`` decides while the layer is constructed; from 0.5.18 on
``BaseFusedOp._resolve_forward_method`` decides on the layer's first call (``dispatch_forward`` stayed for some versions,
inert). The base class is found through the layers themselves: unrelated classes of the same names exist.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from fl_dispatch import SeamError
from sglang_fl.versions import installed_version, tested_range

#: A layer that has been a fused operator in every version.
_PROBE_LAYER = ("sglang.srt.layers.layernorm", "RMSNorm")


@dataclass(frozen=True)
class Seam:
    """The method that decides, and when it does.

    Args:
        module: of the class that defines it.
        owner: that class.
        method: its name.
        lazy: True when it decides on the first call, False when in ``__init__`` (before the layer has any field).
    """

    module: str
    owner: str
    method: str
    lazy: bool

    @property
    def target(self) -> str:
        """The hook target in SGLang's notation."""
        return f"{self.module}.{self.owner}.{self.method}"

    def has(self, method: str) -> bool:
        """Whether the class has a further method."""
        return hasattr(getattr(importlib.import_module(self.module), self.owner), method)


def find_seam() -> Seam:
    """Find the seam of the installed SGLang.

    Raises:
        SeamError: the layers have none of the known ones; names the version and the tested range.
    """
    module, name = _PROBE_LAYER
    layer = getattr(importlib.import_module(module), name)
    # Newest first: where both exist, the older one is inert.
    for method, lazy in (("_resolve_forward_method", True), ("dispatch_forward", False)):
        for klass in layer.__mro__:
            if method in vars(klass):
                return Seam(klass.__module__, klass.__qualname__, method, lazy)
    raise SeamError(
        f"SGLang {installed_version()}: {module}.{name} has neither _resolve_forward_method nor dispatch_forward in its classes "
        f"({', '.join(k.__qualname__ for k in layer.__mro__)}); sglang-fl was tested with {tested_range()}; "
        "install one of these, or a newer sglang-fl"
    )
