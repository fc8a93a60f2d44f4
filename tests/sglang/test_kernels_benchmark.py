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

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu" / "step_kernels.py"
#: SmolLM2-135M has 30 blocks of two norms and an activation, and a last norm.
NORMS, ACTIVATIONS = 61, 30
#: What SGLang's scheduler also calls now and then between steps, when it turns tensors into lists.
BETWEEN_STEPS = {"aten::resolve_conj", "aten::resolve_neg"}


def test_operators_of_a_step_are_counted_and_those_of_another_implementation_named(
    tmp_path: Path, plugin: Callable[[str], Path]
) -> None:
    cpu = {"device": "cpu", "attention_backend": "torch_native", "max_total_tokens": 2048, "mem_fraction_static": 0.3}
    # Names that SGLang has changed since the version that the benchmark is for.
    absent = {"disable_piecewise_cuda_graph": None, "cuda_graph_max_bs": None}
    options = ["--model", os.environ["FL_TEST_MODEL"]]
    for name, value in {**cpu, **absent}.items():
        options += ["--set", f"{name}={json.dumps(value)}"]
    command = [sys.executable, str(SCRIPT), "--eager", "--activity", "CPU", "--engines", "switched off,vendor"]
    command += ["--requests", "2", "--steps", "4", "--rounds", "1", "--repeats", "3"]
    command += [f"--site={tmp_path}", f"--own={plugin('my-chip')}", f"--out={tmp_path}"]
    done = subprocess.run(
        [*command, "--engine-options", json.dumps(options)], capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    result = json.loads((tmp_path / "kernels-eager.json").read_text(encoding="utf-8"))
    native, vendor = (result["requests"]["2"][name]["kernels"] for name in ("switched off", "vendor"))
    broken = {name for kernels in (native, vendor) for name, kernel in kernels.items() if kernel["calls"] % 1}
    assert broken <= BETWEEN_STEPS
    assert [kernels["aten::silu"]["calls"] for kernels in (native, vendor)] == [ACTIVATIONS] * 2
    assert [kernels["aten::rsqrt"]["calls"] for kernels in (native, vendor)] == [NORMS] * 2
    # my-chip squares where SGLang raises to a power.
    assert "aten::square" not in native
    assert vendor["aten::square"]["calls"] == NORMS
    # Times of so few steps say nothing on a busy machine.
    assert {engine: len(times) for engine, times in result["clock_us"]["2"].items()} == {"switched off": 1, "vendor": 1}
    text = (tmp_path / "kernels-eager.md").read_text(encoding="utf-8")
    assert f"| aten::square | - | {NORMS} x " in text
    assert "- vendor: not the same list of kernels as switched off's; " in text
    assert f" us in kernels that switched off lacks (1, +{NORMS} calls)" in text
    assert "- Not a whole number of calls a step: " in text
