# SPDX-License-Identifier: Apache-2.0
"""Finding ``torch_npu``: whether it can be used in this process, and if not, why, in one line.

The device is looked for first: importing torch_npu where there is none costs seconds, and raises where CANN is missing.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fl_vendor_ascend.device import present

MODULE = "torch_npu"
DISTRIBUTION = "torch-npu"


def load() -> Any:
    """The module; raises what importing it raises."""
    return importlib.import_module(MODULE)


def fault() -> str | None:
    """Why torch_npu cannot be used here, or None. Imports it, and so loads CANN, only where there is an NPU."""
    found = present()
    if found is not True:
        return str(found)
    import torch

    if not _installed():
        return f"{MODULE} is not installed; pip install {DISTRIBUTION}=={torch.__version__.partition('+')[0]}"
    try:
        load()
        devices = torch.get_device_module("npu").device_count()
    except Exception as error:  # noqa: BLE001  (a probe; ImportError, OSError, or what a foreign extension raises)
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        cause = f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
        return (
            f"{described()} does not load with torch {torch.__version__}: {cause}; it needs the torch of its own version "
            "and CANN: source its set_env.sh"
        )
    return None if devices else f"{described()}, here with torch {torch.__version__}, sees no NPU"


def missing(*names: str) -> str | None:
    """Which of these functions the loaded module does not have, as a reason, or None."""
    import torch

    absent = [name for name in names if not callable(getattr(load(), name, None))]
    if not absent:
        return None
    return f"{described()}, here with torch {torch.__version__}, has no function {' and no '.join(absent)}"


def described() -> str:
    """Module and version, for messages."""
    try:
        return f"{MODULE} {version(DISTRIBUTION)}"
    except PackageNotFoundError:
        return f"{MODULE} of unknown version"


def _installed() -> bool:
    # find_spec() raises ValueError for a module that something else put into sys.modules without a spec.
    return MODULE in sys.modules or importlib.util.find_spec(MODULE) is not None
