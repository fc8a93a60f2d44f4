# SPDX-License-Identifier: Apache-2.0
"""The installed FlagGems in place of PyTorch's CUDA kernels. Each case is a process of its own: there is no way back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

#: Every case begins with this: settings from the environment, kernels registered, results printed as one JSON line.
PRELUDE = """
import json, os, sys, torch
from fl_dispatch import load_config
from fl_dispatch.aten import replace_aten
config = load_config("FL_DISPATCH_")
found = replace_aten(config, rank=3)
def tell(**what):
    torch.cuda.synchronize()
    print("TOLD " + json.dumps(what, default=str))
"""


def case(code: str, **settings: str) -> dict[str, Any]:
    """Run a case; what it told."""
    variables = {f"FL_DISPATCH_{key}" if key != "USE_FLAGGEMS" else key: value for key, value in settings.items()}
    environ = {**os.environ, "FL_DISPATCH_FLAGOS_ATEN": "1", **variables}
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code], env=environ, capture_output=True, text=True, timeout=200, check=False
    )
    told = [line.removeprefix("TOLD ") for line in done.stdout.splitlines() if line.startswith("TOLD ")]
    assert done.returncode == 0, done.stderr[-4000:]
    assert told, done.stderr[-4000:]
    answer: dict[str, Any] = json.loads(told[-1])
    return answer


def test_flag_gems_offers_hundreds_and_pytorch_takes_all_that_it_has() -> None:
    told = case("tell(replaced=found.replaced, refused=found.refused, state=found.state, reason=found.reason)")
    assert told["state"] == "on", told["reason"]
    assert len(told["replaced"]) > 300
    assert {"mm", "addmm", "add.Tensor", "_softmax", "mul.Tensor"} <= set(told["replaced"])
    assert set(told["refused"].values()) <= {"this PyTorch has no such operator"}, told["refused"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """A matrix product, a sum, a softmax and a fused operator of FlagGems' own, with only some of ATen replaced."""
    folder = tmp_path_factory.mktemp("aten")
    code = """
from types import SimpleNamespace
from fl_dispatch import call_op
torch.manual_seed(0)
with torch.inference_mode():
    a, b = (torch.randn(96, 96, device="cuda", dtype=torch.float16) for _ in range(2))
    product = (a @ b).double().cpu() - a.double().cpu() @ b.double().cpu()
    total = (a + b).double().cpu() - (a.double().cpu() + b.double().cpu())
    soft = torch.softmax(a, -1).double().cpu() - torch.softmax(a.double().cpu(), -1)
    layer = SimpleNamespace(weight=torch.ones(96, device="cuda", dtype=torch.float16), variance_epsilon=1e-6)
    before = set(found.record.served())
    call_op("rms_norm", layer, a.clone())
    call_op("silu_and_mul", layer, a.clone())
    fused = set(found.record.served()) - before
    chosen = [__import__("fl_dispatch").explain(op).chosen.impl_id for op in ("rms_norm", "silu_and_mul")]
tell(errors=[float(x.abs().max()) for x in (product, total, soft)], served=found.record.served(), fused=sorted(fused),
     path=found.record.path, chosen=chosen)
"""
    settings = {"FLAGOS_WHITELIST": "mm,add,softmax,rms_norm,neg", "FLAGOS_RECORD": str(folder / "aten.txt")}
    return case(code, **settings), folder


def test_replaced_operators_compute_the_same(served: tuple[dict[str, Any], Path]) -> None:
    product, total, soft = served[0]["errors"]
    # Half precision: products up to about 40 are rounded by 2**-11 of them, sums up to 8, probabilities up to 1.
    assert product < 40 * 2**-11 * 1.01
    assert total < 8 * 2**-11 * 1.01
    assert soft < 2**-11 * 1.01


def test_what_served_is_recorded_and_what_was_not_called_is_not(served: tuple[dict[str, Any], Path]) -> None:
    told, folder = served
    assert {"mm", "add.Tensor", "_softmax"} <= set(told["served"])
    assert "neg" not in told["served"]
    (record,) = folder.glob("aten*")
    assert record == Path(told["path"])
    assert record.name.startswith("aten.rank3.pid")
    assert {line.split("\t")[0] for line in record.read_text().splitlines()} == set(told["served"])


def test_fused_operators_of_flag_gems_are_no_aten_operators(served: tuple[dict[str, Any], Path]) -> None:
    told, _ = served
    assert told["chosen"] == ["flagos", "flagos"]
    assert told["fused"] == []


def test_a_black_listed_operator_is_pytorchs() -> None:
    code = "a = torch.randn(8, 8, device='cuda'); a @ a; a + a\ntell(served=found.record.served())"
    told = case(code, FLAGOS_BLACKLIST="mm,mm_out", REPORT="unused.json")
    assert "mm" not in told["served"]
    assert "add.Tensor" in told["served"]


def test_replaced_operators_can_be_captured_and_replayed() -> None:
    code = """
with torch.inference_mode():
    a, b = (torch.randn(64, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    run = lambda: torch.softmax(a @ b + a, -1)
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    a.copy_(torch.randn_like(a))
    graph.replay()
    torch.cuda.synchronize()
    # On the CPU: FlagGems' mm for Hopper does not compile for float64.
    x, y = a.cpu().double(), b.cpu().double()
    wanted = torch.softmax(x @ y + x, -1)
tell(error=float((out.cpu().double() - wanted).abs().max()), served=found.record.served())
"""
    told = case(code, FLAGOS_WHITELIST="mm,add,softmax", REPORT="unused.json")
    assert {"mm", "add.Tensor", "_softmax"} <= set(told["served"])
    # Logits up to about 40 in bfloat16 are off by 40 * 2**-9 twice; a probability by that times itself, at most 1/4.
    assert told["error"] < 2 * 40 * 2**-8 / 4


def test_an_unknown_name_is_an_error_with_the_closest_one() -> None:
    code = "tell()"
    environ = {**os.environ, "FL_DISPATCH_FLAGOS_ATEN": "1", "FL_DISPATCH_FLAGOS_WHITELIST": "softmaxx"}
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "FlagGems replaces no ATen operator 'softmaxx' here; did you mean 'softmax'?" in done.stderr


def test_use_flaggems_0_imports_nothing() -> None:
    told = case("tell(state=found.state, loaded='flag_gems' in sys.modules)", USE_FLAGGEMS="0")
    assert told == {"state": "unavailable", "loaded": False}


def test_this_process_has_pytorchs_own_kernels() -> None:
    from fl_dispatch import aten_library

    assert aten_library._kept == []
    assert torch.cuda.is_available()
