# SPDX-License-Identifier: Apache-2.0
"""The files of reports: which one is this process's, and reading one that another process keeps up to date."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def claim_file(target: Path) -> bool:
    """Make the file ours; False when it belongs to another process that lives (a replica with the same rank)."""
    mark = json.dumps({"pid": os.getpid(), "operators": []})
    for _ in range(20):
        try:
            with target.open("x", encoding="utf-8") as file:
                file.write(mark)
        except FileExistsError:
            try:
                owner = json.loads(target.read_text(encoding="utf-8"))["pid"]
            except (OSError, ValueError, KeyError, TypeError):
                time.sleep(0.01)  # another process is just writing its mark
                continue
            if owner != os.getpid() and _lives(owner):
                return False
        return True
    return True  # no report at all: left there by something else


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def wait_for_report(path: Path, calls: Mapping[str, int] | None = None, timeout: float = 10.0) -> dict[str, Any]:
    """Read a report, waiting until it exists and, when ``calls`` is given, until those operators have that many calls.

    Raises:
        TimeoutError: it did not come to that in time; the message shows the last state.
    """
    deadline = time.monotonic() + timeout
    seen: dict[str, int] | None = None
    while True:
        if path.exists():
            report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            seen = {}
            for row in report["operators"]:
                seen[row["operator"]] = seen.get(row["operator"], 0) + row["calls"]
            if all(seen.get(op, 0) >= count for op, count in (calls or {}).items()):
                return report
        if time.monotonic() > deadline:
            have = "there is no report" if seen is None else f"it has {seen or 'no call of any operator'}"
            raise TimeoutError(f"{path}: wanted {dict(calls or {})}, {have} after {timeout} s")
        time.sleep(0.05)
