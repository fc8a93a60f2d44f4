# SPDX-License-Identifier: Apache-2.0
"""SGLang's layers as ``fl-dispatch tune`` measures them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from fl_dispatch import OpManager, OpRegistry, SelectionPolicy, load_config
from fl_dispatch.cli import main
from fl_dispatch.tune.workloads import WORKLOADS, ModelShape
from sglang_fl.tune import framework_layer

pytestmark = pytest.mark.sglang

SHAPE = ModelShape(hidden=64, intermediate=64, heads=2, kv_heads=1, head_size=64)


@pytest.mark.parametrize("bound", [False, True], ids=["own method", "bound"])
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_it_computes_what_the_reference_computes(workload: Any, bound: bool) -> None:
    offered = framework_layer(workload.op_name, vars(SHAPE), torch.float32, "cpu")
    layer, method = offered.layer, offered.method
    sample = workload.sample(SHAPE, 5, torch.float32, "cpu")
    obj = sample.obj
    if "norm" in workload.op_name:
        obj = SimpleNamespace(weight=layer.weight.data, variance_epsilon=layer.variance_epsilon)
    wanted = OpRegistry().spec(workload.op_name).reference(obj, *(_copy(value) for value in sample.args))
    if bound:
        manager = OpManager(policy=SelectionPolicy(prefer=("reference",), strict=True), device_type="cpu")
        site = manager.bind(workload.op_name, layer, label="test")
        method = offered.forward(site)
        implementation, reached = site.fn, []
        site.fn = lambda *args: reached.append(1) or implementation(*args)
    with torch.no_grad():
        found = method(layer, *offered.arguments(*(_copy(value) for value in sample.args)))
    assert not bound or reached == [1]
    for ours, theirs in zip(*(out if isinstance(out, tuple) else (out,) for out in (wanted, found)), strict=True):
        torch.testing.assert_close(theirs.view(ours.shape), ours)


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def test_the_command_measures_it_and_may_choose_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text('{"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2}')
    command = ["tune", "--prefix", "SGLANG_FL_", "--model", ".", "--device", "cpu", "--tokens", "2", "--rounds", "1"]
    assert main([*command, "--ops", "rms_norm"]) == 0
    tuned = yaml.safe_load(Path("fl-tuned.yaml").read_text())["tuned"]
    assert {row["impl_id"] for row in tuned["figures"]} == {"native", "reference"}
    config = load_config("SGLANG_FL_", {"SGLANG_FL_CONFIG": "fl-tuned.yaml"})
    assert set(config.policy.per_op["rms_norm"]) == {"native", "reference"}
