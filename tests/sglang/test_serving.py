# SPDX-License-Identifier: Apache-2.0
"""Real SGLang serves the real model through the dispatcher, and the scheduler's own counts prove it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine import CALLS_PER_FORWARD, REFERENCE, START_TIMEOUT, Run, environment, serve
from ports import free_port

from fl_dispatch import wait_for_report

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module")
def default_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Five prompts, 32 tokens, no setting at all."""
    return serve(tmp_path_factory.mktemp("default"), prompts=5, new_tokens=32)


def test_tokens_equal_those_of_hugging_face(default_run: Run) -> None:
    assert default_run.equal == len(REFERENCE["prompts"])
    assert [len(tokens) for tokens in default_run.tokens or []] == [30, 32, 32, 8, 32]


def test_every_layer_runs_the_reference_and_every_call_is_counted_in_the_scheduler(default_run: Run) -> None:
    reference = dict.fromkeys(CALLS_PER_FORWARD, "reference")
    assert default_run.ran() == default_run.expected(reference)
    assert default_run.forwards == 134


def test_nothing_fell_back_and_no_layer_is_left_to_sglang(default_run: Run) -> None:
    report = default_run.report
    assert report is not None
    assert report["not_served"] == []
    assert report["demotions"] == []
    assert report["left_to_framework"] == []


def test_report_says_why_flagos_was_passed_over(default_run: Run) -> None:
    assert default_run.report is not None
    for row in default_run.report["operators"]:
        (passed,) = row["passed_over"]
        assert passed["implementation"] == "flagos"
        assert "flag_gems is not installed; it needs an accelerator" in passed["reason"]


def test_table_is_in_the_log_of_the_scheduler(default_run: Run) -> None:
    assert "fl-dispatch on sglang" in default_run.log
    for line in ("rms_norm          RMSNorm          61", "silu_and_mul      SiluAndMul       30"):
        assert line in default_run.log


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """SGLang's HTTP server; yields its address and the report of its scheduler."""
    import os

    folder = tmp_path_factory.mktemp("server")
    port = free_port()
    command = [
        sys.executable, "-m", "sglang.launch_server", "--model-path", os.environ["FL_TEST_MODEL"], "--device", "cpu",
        "--dtype", "float32", "--host", "127.0.0.1", "--port", str(port), "--max-total-tokens", "2048",
        "--mem-fraction-static", "0.3", "--grammar-backend", "none", "--disable-overlap-schedule",
        "--skip-server-warmup",
    ]  # fmt: skip
    log = (folder / "log").open("w+")
    process = subprocess.Popen(
        command, env=environment({"SGLANG_FL_REPORT": str(folder / "report.json")}), stdout=log, stderr=log
    )
    try:
        yield _when_healthy(f"http://127.0.0.1:{port}", process, folder / "log"), folder / "report.rank0.json"
    finally:
        process.terminate()
        process.wait(60)
        log.close()


def _when_healthy(address: str, process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text(errors="replace")[-4000:]
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5):
                return address
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise TimeoutError(log.read_text(errors="replace")[-4000:])


def _post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_http_server_answers_and_counts(server: tuple[str, Path]) -> None:
    address, report_path = server
    prompt = REFERENCE["prompts"][3]
    sampling = {"temperature": 0, "max_new_tokens": 32}
    answer = _post(f"{address}/generate", {"input_ids": prompt["prompt_ids"], "sampling_params": sampling})
    assert answer["text"] == prompt["text"].removesuffix("<|im_end|>")
    forwards = answer["meta_info"]["completion_tokens"]
    report = wait_for_report(report_path, {op: calls * forwards for op, calls in CALLS_PER_FORWARD.items()})
    # The server also runs the model for its own health checks, and the report may be of the middle of a forward.
    calls = {row["operator"]: row["calls"] for row in report["operators"]}
    assert set(calls) == set(CALLS_PER_FORWARD)
    assert all(calls[op] >= per_forward * forwards for op, per_forward in CALLS_PER_FORWARD.items())


def test_planted_wrong_implementation_changes_the_tokens_and_is_found_by_comparing(
    tmp_path: Path, plugin: Callable[[str], Path]
) -> None:
    settings = {"SGLANG_FL_PER_OP": "rms_norm=vendor:wrong_numbers", "SGLANG_FL_COMPARE": "1"}
    run = serve(tmp_path, settings, plugins=[plugin("wrong-numbers")], new_tokens=12)
    assert run.equal == 0
    wanted = {"rms_norm": "vendor.wrong_numbers", "rotary_embedding": "reference", "silu_and_mul": "reference"}
    assert run.ran() == run.expected(wanted)
    assert run.report is not None
    compared = {row["operator"]: row for row in run.report["compared"]}
    assert {op: row["calls"] for op, row in compared.items()} == {
        op: n * run.forwards for op, n in CALLS_PER_FORWARD.items()
    }
    assert {op: row["wrong_calls"] for op, row in compared.items() if row["wrong_calls"]} == {
        "rms_norm": 61 * run.forwards
    }
    assert compared["rms_norm"]["wrong_layers"] == 61
    assert compared["rms_norm"]["first_wrong_layers"][0] == "model.layers.0.input_layernorm"
    assert all(0 < compared[op]["worst_error_of_tolerance"] < 1 for op in ("rotary_embedding", "silu_and_mul"))
    assert "compare: rms_norm by vendor.wrong_numbers is wrong in model.layers.0.input_layernorm" in run.log
