# SPDX-License-Identifier: Apache-2.0
"""Finding ``sgl_kernel``: whether it can be used in this process, and if not, why, in one line."""

from __future__ import annotations

import importlib
import importlib.util
from importlib.metadata import PackageNotFoundError, version
from typing import Any

MODULE = "sgl_kernel"
#: The distributions that bring the module, newest name first.
DISTRIBUTIONS = ("sglang-kernel", "sgl-kernel")
#: Its own text lists every place it looked in; these lines of it are no cause.
_NO_CAUSE = "No module named 'common_ops'"


def load() -> Any:
    """The module; raises what importing it raises."""
    return importlib.import_module(MODULE)


def fault() -> str | None:
    """Why sgl_kernel cannot be used here, or None. Imports it, and so initialises CUDA, only where there is a GPU."""
    import torch

    if torch.version.cuda is None:
        return f"needs a CUDA build of torch, this is torch {torch.__version__}"
    if not torch.cuda.is_available():
        return f"needs an NVIDIA GPU, torch {torch.__version__} (CUDA {torch.version.cuda}) sees none"
    if importlib.util.find_spec(MODULE) is None:
        return f"{MODULE} is not installed; pip install {DISTRIBUTIONS[0]}, in the build for torch {torch.__version__}"
    try:
        load()
    except Exception as error:  # noqa: BLE001  (a probe; ImportError, OSError, or what a foreign extension raises)
        return (
            f"{described()} does not load with torch {torch.__version__} (CUDA {torch.version.cuda}): {_cause(error)}; "
            f"install the {distribution()[0]} that was built for this torch"
        )
    return None


def missing(*names: str) -> str | None:
    """Which of these functions the loaded module does not have, as a reason, or None."""
    import torch

    absent = [name for name in names if not callable(getattr(load(), name, None))]
    if not absent:
        return None
    return f"{described()}, here with torch {torch.__version__}, has no function {' and no '.join(absent)}"


def has_fast_math() -> bool:
    """Whether the binary for this GPU is the one for Hopper, which alone is built with approximate arithmetic."""
    import torch

    return torch.cuda.get_device_capability() == (9, 0)


def distribution() -> tuple[str, str]:
    """Name and version of the installed distribution."""
    for name in DISTRIBUTIONS:
        try:
            return name, version(name)
        except PackageNotFoundError:
            continue
    return DISTRIBUTIONS[0], "of unknown version"


def described() -> str:
    """Module, distribution and version, for messages."""
    name, its_version = distribution()
    return f"{MODULE} ({name} {its_version})"


def _cause(error: Exception) -> str:
    """The line of the error that names a cause: sgl_kernel puts each failed attempt on one, after "- "."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    attempts = [line[2:] for line in lines if line.startswith("- ") and "Error: " in line and _NO_CAUSE not in line]
    if attempts:
        return attempts[0]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
