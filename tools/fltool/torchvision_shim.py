# SPDX-License-Identifier: Apache-2.0
"""Lets PyPI's torchvision, which is built for CUDA, be imported beside a CPU build of torch.

Its C++ library then does not load, and its Python part fails on registering shape functions for two operators that the
library would have defined. This defines them, without a kernel, exactly if the library did not load: so it changes
nothing where torch and torchvision match. The environment tool copies this file into an environment's site-packages,
where a .pth line imports it at interpreter start.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

# The first module that needs the operators; torchvision/__init__.py tries its C++ library before importing it.
_TRIGGER = "torchvision._meta_registrations"


class _DefineMissingOperators(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == _TRIGGER:
            sys.meta_path.remove(self)
            _define_missing_operators()
        return None  # never finds anything itself: the ordinary finders go on


def _define_missing_operators() -> None:
    import torch

    if hasattr(torch.ops.torchvision, "nms"):
        return
    # torch.library has no annotations, hence the ignores.
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        schema = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        library.define(schema)  # type: ignore[no-untyped-call]
    # A library takes its definitions with it when it is collected.
    sys.modules[__name__]._library = library  # type: ignore[attr-defined]  # a module attribute made here


sys.meta_path.insert(0, _DefineMissingOperators())
