# SPDX-License-Identifier: Apache-2.0
"""One engine with what a tuned deployment sets: ATen operators replaced, and orders by tokens with SGLang's own method."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine import CALLS_PER_FORWARD, TESTS, Run, serve

pytestmark = pytest.mark.sglang

POLICY = """
prefer: reference
per_op:
  rms_norm: {1: native, more: reference}
  silu_and_mul: {1: native, more: native}
flagos_aten: true
flagos_whitelist: [index_select, neg]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tuned")


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    (folder / "fl.yaml").write_text(POLICY)
    settings = {
        "SGLANG_FL_CONFIG": str(folder / "fl.yaml"),
        "SGLANG_FL_FLAGOS_RECORD": str(folder / "aten.txt"),
        "FAKE_GEMS_IMPORTS": str(folder / "imports"),
    }
    counted = ("rms_norm", "rotary_embedding")
    return serve(folder, settings, plugins=[TESTS / "unit" / "aten" / "fake_gems"], counted=counted)


def test_only_the_scheduler_replaces_operators_and_its_record_names_what_served(run: Run, folder: Path) -> None:
    assert run.report is not None, run.log[-4000:]
    scheduler = run.report["pid"]
    assert set((folder / "imports").read_text().split()) == {str(scheduler)}
    (record,) = folder.glob("aten.*")
    assert record.name == f"aten.rank0.pid{scheduler}.txt"
    # The rotary reference looks positions up with it; the model negates nothing.
    assert record.read_text() == "index_select\tflag_gems.ops.index_select\n"
    aten = run.report["aten"]
    assert (aten["replaced"], aten["served"]) == (["index_select", "neg"], ["index_select"])
    assert "ATen operators: 2 by FlagGems" in run.log


def test_sglangs_norm_serves_decoding_and_the_reference_prefilling(run: Run) -> None:
    assert run.equal == 2
    prefills = 2  # a prompt each
    calls = CALLS_PER_FORWARD["rms_norm"]
    assert {row[:5] for row in run.ran() if row[0] == "rms_norm"} == {
        ("rms_norm", "native", "RMSNorm, up to 1 tokens", 61, calls * (run.forwards - prefills)),
        ("rms_norm", "reference", "RMSNorm, more tokens", 61, calls * prefills),
    }


def test_an_activation_that_is_native_for_every_number_of_tokens_is_left(run: Run) -> None:
    assert run.left() == {("SiluAndMul", 30, "by policy: first able in the order, by token native")}
