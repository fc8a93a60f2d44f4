# SPDX-License-Identifier: Apache-2.0
"""Reading the pinned requirement lists. They are plain pip files of ``name==version`` lines and comments."""

from __future__ import annotations

import re
from pathlib import Path

from fltool.paths import relative
from fltool.process import ToolError

_PIN = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9.!]+)")


def pins(*lists: Path) -> dict[str, str]:
    """Normalized project name to version, over all the lists.

    Raises:
        ToolError: a line is not an exact pin, or two lines disagree.
    """
    result: dict[str, str] = {}
    for path in lists:
        for number, raw in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            line = raw.partition("#")[0].strip()
            if not line:
                continue
            match = _PIN.fullmatch(line)
            if match is None:
                raise ToolError(f"{relative(path)}:{number}: {line!r} is not an exact pin; write name==version")
            name = re.sub(r"[-_.]+", "-", match["name"]).lower()
            version = match["version"]
            if result.setdefault(name, version) != version:
                raise ToolError(f"{relative(path)}:{number}: {name} is pinned to {result[name]} and to {version}")
    return result
