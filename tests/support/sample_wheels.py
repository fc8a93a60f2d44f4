# SPDX-License-Identifier: Apache-2.0
"""The sample vendors of tests/plugins as wheels: built once for all environments, installed where a test wants them.

FL_TEST_WHEELS   folder where they are kept; without it they are built anew
FL_TEST_RECORDS  folder where tests leave what tests of another environment compare
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PLUGINS = Path(__file__).parents[1] / "plugins"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")


def wheel(name: str, scratch: Path) -> Path:
    """The wheel of tests/plugins/NAME, built offline if it is not there yet."""
    folder = Path(os.environ.get("FL_TEST_WHEELS") or scratch)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = list(folder.glob(f"{name.replace('-', '_')}-*.whl"))
        if not found:
            source = str(PLUGINS / name)
            subprocess.run([*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), source], check=True)
            found = list(folder.glob(f"{name.replace('-', '_')}-*.whl"))
    (path,) = found
    return path


@functools.cache
def install_plugin(name: str, into: Path) -> Path:
    """Install the wheel of tests/plugins/NAME into a folder, as ``pip install --target`` does; the folder."""
    target = into / name
    file = str(wheel(name, into / "wheels"))
    subprocess.run([*PIP, "install", "--no-deps", "--no-index", "--target", str(target), file], check=True)
    return target


def install_project(source: Path, into: Path) -> Path:
    """Build any project as a wheel, offline, and install that into a folder; the folder."""
    wheels, target = into / "wheels", into / "site"
    subprocess.run([*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(source)], check=True)
    (file,) = wheels.glob("*.whl")
    subprocess.run([*PIP, "install", "--no-deps", "--no-index", "--target", str(target), str(file)], check=True)
    return target


def record(framework: str, name: str, report: dict[str, Any], scratch: Path) -> None:
    """Leave a report for tests/frameworks, with the digest of the wheel whose implementations are in it."""
    folder = os.environ.get("FL_TEST_RECORDS")
    if folder:
        digest = hashlib.sha256(wheel(name, scratch).read_bytes()).hexdigest()
        content = json.dumps({"wheel": digest, "report": report})
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / f"{name}.{framework}.json").write_text(content, encoding="utf-8")
