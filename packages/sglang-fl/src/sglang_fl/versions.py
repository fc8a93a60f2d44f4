# SPDX-License-Identifier: Apache-2.0
"""Which SGLang is installed, and whether its version is one this plug-in was tested with. Imports no SGLang."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

#: Every patch release from the first with a plug-in system on.
TESTED_VERSIONS = (
    "0.5.11",
    "0.5.12",
    "0.5.13",
    "0.5.14",
    "0.5.15",
    "0.5.16",
    "0.5.17",
    "0.5.18",
    "0.5.19",
    "0.5.20",
    "0.5.21",
    "0.5.22",
    "0.5.23",
)


def installed_version() -> str:
    """The version of the installed SGLang, from its metadata; ``"not installed"`` when there is none."""
    try:
        return version("sglang")
    except PackageNotFoundError:
        return "not installed"


def tested_range() -> str:
    """The tested versions, for messages."""
    return f"SGLang {TESTED_VERSIONS[0]} to {TESTED_VERSIONS[-1]}"


def release(version_: str) -> tuple[int, ...]:
    """The leading numbers of a version, ``(0, 5, 23)`` of ``"0.5.23.post1+cpu"``; empty when there are none."""
    match = re.match(r"\d+(\.\d+)*", version_)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def too_old(version_: str) -> bool:
    """Whether this SGLang has no plug-in system, so that nothing of this package is ever loaded."""
    return () < release(version_) < release(TESTED_VERSIONS[0])


def verdict(version_: str) -> str | None:
    """None for a tested version, else a sentence for the user. Pre-, post- and development releases are untested."""
    if version_.partition("+")[0] in TESTED_VERSIONS:
        return None
    if too_old(version_):
        return f"SGLang {version_} has no plug-in system and loads nothing of sglang-fl; install {tested_range()}"
    return f"SGLang {version_} is not a version sglang-fl was tested with ({tested_range()})"
