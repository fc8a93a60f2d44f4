# SPDX-License-Identifier: Apache-2.0
"""SGLang's layers as ``fl-dispatch tune`` measures them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import offered_layers
import pytest
import yaml

from fl_dispatch import load_config
from fl_dispatch.cli import main
from fl_dispatch.tune.workloads import WORKLOADS
from sglang_fl.tune import framework_layer

pytestmark = pytest.mark.sglang


@pytest.mark.parametrize("bound", [False, True], ids=["own method", "bound"])
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_it_computes_what_the_reference_computes(workload: Any, bound: bool) -> None:
    offered_layers.check(framework_layer, workload, bound)


def test_the_command_measures_it_and_may_choose_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text('{"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2}')
    command = ["tune", "--prefix", "SGLANG_FL_", "--model", ".", "--device", "cpu", "--tokens", "2", "--rounds", "1"]
    assert main([*command, "--ops", "rms_norm"]) == 0
    tuned = yaml.safe_load(Path("fl-tuned.yaml").read_text())["tuned"]
    assert {row["impl_id"] for row in tuned["figures"]} == {"native", "reference"}
    config = load_config("SGLANG_FL_", {"SGLANG_FL_CONFIG": "fl-tuned.yaml"})
    assert set(config.policy.per_op["rms_norm"]) == {"native", "reference"}
