# SPDX-License-Identifier: Apache-2.0
"""The benchmark of bound layers, which runs unattended on a GPU, here on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu" / "bridge.py"


def test_every_layer_is_called_in_three_ways(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path), "--device", "cpu", "--prefer", "reference"]
    subprocess.run(command, check=True, capture_output=True, timeout=280)
    rows = json.loads((tmp_path / "bridge.json").read_text(encoding="utf-8"))["rows"]
    assert [row["case"] for row in rows] == ["silu_and_mul", "rms_norm", "rms_norm with residual", "rotary_embedding"]
    for row in rows:
        assert row["implementation"] == "reference"
        assert set(row["host_us"]) == {"framework's method", "bound layer", "implementation alone"}
        assert min(row["host_us"].values()) > 0
        assert set(row["above_us"]) == {"framework's method", "implementation alone"}
    table = (tmp_path / "bridge.md").read_text(encoding="utf-8")
    for row in rows:
        assert f"| {row['case']} | reference | {' | '.join(map(str, row['host_us'].values()))} |" in table
