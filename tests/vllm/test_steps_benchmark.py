# SPDX-License-Identifier: Apache-2.0
"""The benchmark of steps that take turns within one engine, which runs unattended on a GPU, here on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from vllm_engine import CALLS_PER_FORWARD, LAYERS, environment

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu" / "steps.py"
#: That fit a small machine.
SIZES = {"max_model_len": 512, "max_num_seqs": 8, "kv_cache_memory_bytes": 256 << 20}


def test_the_layers_of_a_served_model_go_both_ways_in_turn(tmp_path: Path) -> None:
    options = ["--model", os.environ["FL_TEST_MODEL"]]
    for name, value in SIZES.items():
        options += ["--set", f"{name}={json.dumps(value)}"]
    command = [sys.executable, str(SCRIPT), "--framework", "vllm", "--engines", "flagos"]
    command += ["--requests", "2", "--new", "50", "--seconds", "0", "--by-operator"]
    command += [f"--{folder}={tmp_path / folder}" for folder in ("site", "own", "out")]
    done = subprocess.run(
        [*command, "--engine-options", json.dumps(options)],
        env=environment({"VLLM_FL_REPORT": str(tmp_path / "report.json")}),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    result = json.loads((tmp_path / "out" / "vllm-steps.json").read_text(encoding="utf-8"))
    assert result["title"].startswith("vLLM ")
    (row,) = result["engines"]["flagos"]
    assert row["layers"] == sum(LAYERS.values())
    assert row["cycles"] == 4  # two while it compiles
    assert row["native_us"] > 0
    assert row["ratio"][0] > 0
    operators = {one["operator"]: one for one in row["operators"]}
    assert {name: one["calls"] for name, one in operators.items()} == CALLS_PER_FORWARD
    for one in operators.values():
        assert all(0 < one[key] < 1e6 for key in ("native_us", "bound_us"))
        assert abs(one["more_us"][0]) < 1e6
    report = json.loads((tmp_path / "report.rank0.json").read_text(encoding="utf-8"))
    (norms,) = [row["calls"] for row in report["operators"] if row["operator"] == "rms_norm"]
    # Of 49 steps of decoding in either of two rounds three turns of six are for the bound layers; few others come before.
    assert 36 <= norms / CALLS_PER_FORWARD["rms_norm"] < 45
