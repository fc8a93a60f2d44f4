# SPDX-License-Identifier: Apache-2.0
"""What a user selects runs in real vLLM: a vendor's wheel, a planted mistake, in graphs and outside of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sample_wheels import record
from vllm_engine import (
    CALLS_PER_FORWARD,
    ONE_PROCESS,
    OUR_PLATFORM,
    WANTED,
    Run,
    eager_rows,
    environment,
    generate,
    serve,
)

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

Plugin = Callable[[str], Path]

#: Dynamo traces and nothing is compiled to machine code: enough to see what is in a graph.
TRACE_ONLY = {**ONE_PROCESS, "VLLM_CPU_CI_ENV": "1"}


@pytest.fixture(scope="module")
def vendor_run(plugin: Plugin, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The wheel that serves SGLang in its tests; a wrong norm of another vendor is installed besides, and denied."""
    return generate(
        tmp_path_factory.mktemp("vendor"),
        {"VLLM_FL_PREFER": "vendor,reference", "VLLM_FL_DENY_VENDORS": "wrong_numbers"},
        plugins=[plugin("my-chip"), plugin("wrong-numbers")],
        enforce_eager=True,
        counted=CALLS_PER_FORWARD,
    )


def test_the_vendor_wheel_of_the_sglang_tests_serves_every_call(vendor_run: Run, tmp_path: Path) -> None:
    assert vendor_run.tokens == WANTED[:2], vendor_run.log[-4000:]
    assert vendor_run.ran() == eager_rows(dict.fromkeys(CALLS_PER_FORWARD, "vendor.my_chip"), vendor_run.forwards)
    assert vendor_run.report is not None
    record("vllm", "my-chip", vendor_run.report, tmp_path)


def test_report_shows_both_vendors(vendor_run: Run) -> None:
    assert vendor_run.report is not None
    statuses = {vendor["name"]: vendor["status"] for vendor in vendor_run.report["vendors"]}
    assert statuses == {"my_chip": "registered", "wrong_numbers": "denied"}


def test_a_planted_wrong_norm_changes_the_tokens_and_is_found_by_comparing(plugin: Plugin, tmp_path: Path) -> None:
    run = generate(
        tmp_path,
        {**ONE_PROCESS, "VLLM_FL_PER_OP": "rms_norm=vendor", "VLLM_FL_COMPARE": "1"},
        plugins=[plugin("wrong-numbers")],
        enforce_eager=True,
        counted=CALLS_PER_FORWARD,
    )
    assert run.tokens is not None, run.log[-4000:]
    assert run.tokens != WANTED[:2]
    chosen = {**dict.fromkeys(CALLS_PER_FORWARD, "reference"), "rms_norm": "vendor.wrong_numbers"}
    assert run.ran() == eager_rows(chosen, run.forwards)
    assert run.report is not None
    compared = {row["operator"]: row for row in run.report["compared"]}
    assert {op: row["calls"] for op, row in compared.items()} == {
        op: n * run.forwards for op, n in CALLS_PER_FORWARD.items()
    }
    assert {op for op, row in compared.items() if row["wrong_calls"]} == {"rms_norm"}
    assert compared["rms_norm"]["wrong_calls"] == compared["rms_norm"]["calls"]
    assert compared["rms_norm"]["first_wrong_layers"][0] == "model.layers.0.input_layernorm"
    assert all(0 < compared[op]["worst_error_of_tolerance"] < 1 for op in ("rotary_embedding", "silu_and_mul"))


def test_a_planted_wrong_norm_changes_the_tokens_of_a_server_on_our_platform(
    plugin: Plugin, two_layers: Path, two_layers_tokens: list[list[int]], tmp_path: Path
) -> None:
    run = serve(
        tmp_path,
        {**OUR_PLATFORM, "VLLM_FL_PER_OP": "rms_norm=vendor"},
        plugins=[plugin("wrong-numbers")],
        model=two_layers,
        eager=True,
        counted={"rms_norm": 5, "rotary_embedding": 2, "silu_and_mul": 2},
    )
    assert run.tokens is not None
    assert run.tokens != two_layers_tokens
    assert ("rms_norm", "vendor.wrong_numbers", "RMSNorm", 5, 5 * run.forwards, 0) in run.ran()


def test_an_undeclared_implementation_stays_out_of_graphs_and_the_report_says_how_to_get_it_in(
    plugin: Plugin, two_layers: Path, tmp_path: Path
) -> None:
    run = generate(
        tmp_path,
        {"VLLM_FL_PREFER": "vendor,reference", **TRACE_ONLY},
        plugins=[plugin("my-chip")],
        model=two_layers,
        new_tokens=2,
    )
    assert run.report is not None, run.log[-4000:]
    for row in run.report["operators"]:
        assert row["implementation"] == "reference"
        reasons = {passed["implementation"]: passed["reason"] for passed in row["passed_over"]}
        assert "does not declare which fields of obj it reads" in reasons["vendor.my_chip"]
        assert "declare reads=frozenset({...})" in reasons["vendor.my_chip"]


def test_under_strict_an_implementation_that_cannot_be_in_the_graph_stops_the_start(
    plugin: Plugin, two_layers: Path, tmp_path: Path
) -> None:
    run = generate(
        tmp_path,
        {"VLLM_FL_PREFER": "vendor,reference", "VLLM_FL_STRICT": "1", **TRACE_ONLY},
        plugins=[plugin("my-chip")],
        model=two_layers,
    )
    assert run.status != 0
    assert run.tokens is None
    assert "does not declare which fields of obj it reads" in run.error()


@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        ("VLLM_FL_PREFFER", "vendor", "did you mean 'VLLM_FL_PREFER'?"),
        ("VLLM_FL_OOT_BLACKLIST", "RMSNrom", "did you mean 'RMSNorm'?"),
    ],
)
def test_a_wrong_setting_stops_the_start(setting: str, value: str, told: str, tmp_path: Path) -> None:
    run = generate(tmp_path, {**ONE_PROCESS, setting: value})
    assert run.status != 0
    assert told in run.error()
    assert run.report is None


def test_black_list_and_custom_ops_leave_layers_to_vllm_and_the_report_says_so(
    two_layers: Path, tmp_path: Path
) -> None:
    run = generate(
        tmp_path,
        {**ONE_PROCESS, "VLLM_FL_OOT_BLACKLIST": "SiluAndMul"},
        model=two_layers,
        new_tokens=2,
        enforce_eager=True,
        compilation_config={"custom_ops": ["all", "-rms_norm"]},
    )
    assert run.report is not None, run.log[-4000:]
    assert [row["operator"] for row in run.report["operators"]] == ["rotary_embedding"]
    left = {(row["operator"], row["layers"]): row["reason"] for row in run.report["left_to_framework"]}
    assert left["silu_and_mul", 2] == "in the black list (VLLM_FL_OOT_BLACKLIST)"
    assert "-rms_norm in custom_ops" in left["rms_norm", 5]


IR_ORDER = {"rms_norm": ["fl", "native"], "fused_add_rms_norm": ["fl", "native"]}


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "compiled"])
def test_norms_left_to_vllm_are_served_through_vllm_ir_where_its_order_names_us(
    eager: bool, two_layers: Path, two_layers_tokens: list[list[int]], tmp_path: Path
) -> None:
    run = generate(
        tmp_path,
        {**ONE_PROCESS, "VLLM_FL_OOT_BLACKLIST": "RMSNorm", "VLLM_CPU_CI_ENV": "1"},
        model=two_layers,
        prompts=1,
        enforce_eager=eager,
        counted={"rms_norm": 5} if eager else {},
        ir_op_priority=IR_ORDER,
    )
    assert run.tokens == two_layers_tokens[:1], run.log[-4000:]
    rows = {row[2]: row for row in run.ran()}
    for label, places in (("vllm.ir.rms_norm", 1), ("vllm.ir.fused_add_rms_norm", 4)):
        counts = (places * run.forwards, 0) if eager else (0, places)
        assert rows[label] == ("rms_norm", "reference", label, 1, *counts)


def test_an_implementation_that_nothing_has_is_refused_when_the_plug_in_is_loaded() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import vllm_fl_adapter; vllm_fl_adapter.load_plugin()"],
        env=environment({"VLLM_FL_PER_OP": "rms_norm=impl:vendor.nowhere|reference"}),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 1
    wanted = "ConfigError: token 'impl:vendor.nowhere': no implementation of operator 'rms_norm' has this id"
    assert wanted in done.stderr
