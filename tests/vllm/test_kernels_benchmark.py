# SPDX-License-Identifier: Apache-2.0
"""The benchmark of what a step of decoding is made of, which runs unattended on a GPU, here on the CPU with ATen's operators."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from vllm_engine import CALLS_PER_FORWARD, environment

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu" / "step_kernels.py"
#: That fit a small machine.
SIZES = {"max_model_len": 512, "max_num_seqs": 8, "kv_cache_memory_bytes": 256 << 20}


def test_operators_of_a_step_are_counted_and_those_of_another_implementation_named(
    tmp_path: Path, plugin: Callable[[str], Path]
) -> None:
    options = ["--model", os.environ["FL_TEST_MODEL"]]
    for name, value in SIZES.items():
        options += ["--set", f"{name}={json.dumps(value)}"]
    command = [sys.executable, str(SCRIPT), "--framework", "vllm", "--eager", "--activity", "CPU"]
    command += [
        "--engines",
        "switched off,vendor",
        "--requests",
        "2",
        "--steps",
        "4",
        "--rounds",
        "1",
        "--repeats",
        "3",
    ]
    command += [f"--site={tmp_path}", f"--own={plugin('my-chip')}", f"--out={tmp_path}"]
    done = subprocess.run(
        [*command, "--engine-options", json.dumps(options)],
        env=environment({}),
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    result = json.loads((tmp_path / "vllm-kernels-eager.json").read_text(encoding="utf-8"))
    native, vendor = (result["requests"]["2"][name]["kernels"] for name in ("switched off", "vendor"))
    assert [name for kernels in (native, vendor) for name, kernel in kernels.items() if kernel["calls"] % 1] == []
    assert [kernels["aten::silu"]["calls"] for kernels in (native, vendor)] == [CALLS_PER_FORWARD["silu_and_mul"]] * 2
    # vLLM has a kernel for rotary on the CPU; my-chip squares where vLLM raises to a power.
    assert native["_C::rotary_embedding"]["calls"] == CALLS_PER_FORWARD["rotary_embedding"]
    assert vendor["aten::square"]["calls"] == CALLS_PER_FORWARD["rms_norm"]
    text = (tmp_path / "vllm-kernels-eager.md").read_text(encoding="utf-8")
    assert text.startswith("# vLLM ")
    assert "| _C::rotary_embedding | 30 x " in text
    assert "| aten::square | - | 61 x " in text
