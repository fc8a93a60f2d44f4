# SPDX-License-Identifier: Apache-2.0
"""ATen operators replaced in the process that runs the model, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine import TESTS, serve

pytestmark = pytest.mark.sglang


def test_only_the_scheduler_replaces_operators_and_its_record_names_what_served(tmp_path: Path) -> None:
    settings = {
        "SGLANG_FL_PREFER": "reference",
        "SGLANG_FL_FLAGOS_ATEN": "1",
        "SGLANG_FL_FLAGOS_WHITELIST": "index_select,neg",
        "SGLANG_FL_FLAGOS_RECORD": str(tmp_path / "aten.txt"),
        "FAKE_GEMS_IMPORTS": str(tmp_path / "imports"),
    }
    run = serve(tmp_path, settings, plugins=[TESTS / "unit" / "aten" / "fake_gems"])
    assert run.report is not None, run.log[-4000:]
    scheduler = run.report["pid"]
    assert set((tmp_path / "imports").read_text().split()) == {str(scheduler)}
    (record,) = tmp_path.glob("aten.*")
    assert record.name == f"aten.rank0.pid{scheduler}.txt"
    # The rotary reference looks positions up with it; the model negates nothing.
    assert record.read_text() == "index_select\tflag_gems.ops.index_select\n"
    aten = run.report["aten"]
    assert (aten["replaced"], aten["served"]) == (["index_select", "neg"], ["index_select"])
    assert "ATen operators: 2 by FlagGems" in run.log
    assert run.equal == 2
