# SPDX-License-Identifier: Apache-2.0
"""The benchmark of steps that take turns within one engine, which runs unattended on a GPU, here on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.sglang

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu" / "steps.py"
#: SmolLM2-135M has 30 blocks of two norms and an activation, a last norm, and one rotary layer.
LAYERS = 30 * 3 + 2
CALLS = {"rms_norm": 61, "rotary_embedding": 30, "silu_and_mul": 30}


def test_the_layers_of_a_served_model_go_both_ways_in_turn(tmp_path: Path) -> None:
    cpu = {"device": "cpu", "attention_backend": "torch_native", "max_total_tokens": 2048, "mem_fraction_static": 0.3}
    # Names that SGLang has changed since the version that the benchmark is for.
    absent = {"disable_piecewise_cuda_graph": None, "cuda_graph_max_bs": None}
    options = ["--model", os.environ["FL_TEST_MODEL"]]
    for name, value in {**cpu, **absent}.items():
        options += ["--set", f"{name}={json.dumps(value)}"]
    command = [sys.executable, str(SCRIPT), "--engines", "flagos", "--requests", "2", "--new", "50", "--seconds", "0"]
    command.append("--by-operator")
    command += [f"--{folder}={tmp_path / folder}" for folder in ("site", "own", "out")]
    done = subprocess.run(
        [*command, "--engine-options", json.dumps(options)], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    result = json.loads((tmp_path / "out" / "steps.json").read_text(encoding="utf-8"))
    (row,) = result["engines"]["flagos"]
    assert row["layers"] == LAYERS
    assert row["cycles"] == 4  # two while it compiles
    assert row["native_us"] > 0
    assert row["ratio"][0] > 0
    # Every block rotates with the same layer.
    operators = {one["operator"]: one for one in row["operators"]}
    assert {name: one["calls"] for name, one in operators.items()} == CALLS
    for one in operators.values():
        assert all(0 < one[key] < 1e6 for key in ("native_us", "bound_us"))
        assert abs(one["more_us"][0]) < 1e6
