# SPDX-License-Identifier: Apache-2.0
"""ATen operators replaced in vLLM's worker, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from vllm_engine import CALLS_PER_FORWARD, WANTED, generate

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

FAKE_GEMS = Path(__file__).parents[1] / "unit" / "aten" / "fake_gems"


def test_only_the_worker_replaces_operators_and_its_record_names_what_served(tmp_path: Path) -> None:
    settings = {
        "VLLM_FL_PREFER": "reference",
        "VLLM_FL_FLAGOS_ATEN": "1",
        "VLLM_FL_FLAGOS_WHITELIST": "index_select,neg",
        "VLLM_FL_FLAGOS_RECORD": str(tmp_path / "aten.txt"),
        "FAKE_GEMS_IMPORTS": str(tmp_path / "imports"),
    }
    run = generate(tmp_path, settings, plugins=[FAKE_GEMS], enforce_eager=True, counted=CALLS_PER_FORWARD)
    assert run.report is not None, run.log[-4000:]
    worker = run.report["pid"]
    assert set((tmp_path / "imports").read_text().split()) == {str(worker)}
    (record,) = tmp_path.glob("aten.*")
    assert record.name == f"aten.rank0.pid{worker}.txt"
    # The rotary reference looks positions up with it; the model negates nothing.
    assert record.read_text() == "index_select\tflag_gems.ops.index_select\n"
    assert run.report["aten"]["replaced"] == ["index_select", "neg"]
    assert run.tokens == WANTED[:2], run.log[-4000:]
