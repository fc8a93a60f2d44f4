# SPDX-License-Identifier: Apache-2.0
"""Result files: what each says of date, command and versions, and how it is written."""

from __future__ import annotations

import datetime
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Whose versions count.
DISTRIBUTIONS = (
    "torch",
    "triton",
    "flag-gems",
    "sglang-kernel",
    "sgl-kernel",
    "flashinfer-python",
    "sglang",
    "vllm",
    "fl-dispatch",
    "fl-vendor-cuda",
    "sglang-fl",
    "vllm-fl-adapter",
)
_VERSIONS = """
import json, sys
from importlib.metadata import PackageNotFoundError, version
found = {"python": sys.version.split()[0]}
for name in sys.argv[1:]:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def headed(script: str, options: str, /, **fields: Any) -> dict[str, Any]:
    """A result that begins with today's date and the command.

    Args:
        script: file name of the benchmark.
        options: as they were given, without folders.
        fields: what follows.
    """
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": f"python3 benchmarks/gpu/{script} {options}".rstrip(),
        **fields,
    }


def write(out: Path, name: str, result: Mapping[str, Any], page: str) -> None:
    """``NAME.json`` and, as Markdown, ``NAME.md``."""
    (out / f"{name}.json").write_text(json.dumps(_plain(result), indent=1) + "\n", encoding="utf-8")
    (out / f"{name}.md").write_text(page, encoding="utf-8")


def _plain(value: Any) -> Any:
    """With null for what is not a number, which JSON has no word for."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def versions(*path: Path | str) -> dict[str, str]:
    """Of what a process has that finds packages in these folders first."""
    run = [sys.executable, "-c", _VERSIONS, *DISTRIBUTIONS]
    environ = {**os.environ, **({"PYTHONPATH": os.pathsep.join(map(str, path))} if path else {})}
    done = subprocess.run(run, env=environ, capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def device() -> str:
    """The GPU's name, as the driver has it."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "no NVIDIA GPU"
    return done.stdout.partition("\n")[0].strip()
