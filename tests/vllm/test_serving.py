# SPDX-License-Identifier: Apache-2.0
"""Real vLLM serves the real model through the dispatcher, and the worker's own counts prove it.

Offline and behind HTTP, eager and with vLLM's default compilation, on vLLM's platform for CPUs and on ours.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from vllm_engine import (
    CALLS_PER_FORWARD,
    OUR_PLATFORM,
    WANTED,
    Run,
    compiled_rows,
    eager_rows,
    generate,
    serve,
)

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

REFERENCE = dict.fromkeys(CALLS_PER_FORWARD, "reference")
PLATFORMS = {
    "builtin": ({}, "vllm.platforms.cpu.CpuPlatform"),
    "ours": (OUR_PLATFORM, "vllm_fl_adapter.platform.DispatchPlatform"),
}


@pytest.fixture(scope="module", params=["builtin", "ours"])
def platform(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["offline", "http"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def eager_run(platform: str, way: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp(f"eager-{platform}-{way}")
    settings = PLATFORMS[platform][0]
    if way == "http":
        return serve(folder, settings, eager=True)
    return generate(folder, settings, enforce_eager=True, counted=CALLS_PER_FORWARD)


@pytest.fixture(scope="module")
def compiled_run(
    platform: str,
    way: str,
    cache: dict[str, str],
    two_layers: Path,
    two_layers_tokens: list[list[int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Run, int, list[list[int]]]:
    """The run, the number of the model's layers, and the tokens wanted.

    The whole model, which compiles for minutes, once; its first two layers otherwise.
    """
    whole = (platform, way) == ("builtin", "offline")
    folder = tmp_path_factory.mktemp(f"compiled-{platform}-{way}")
    model = None if whole else two_layers
    run = (serve if way == "http" else generate)(folder, {**cache, **PLATFORMS[platform][0]}, model=model)
    return (run, 30, WANTED[:2]) if whole else (run, 2, two_layers_tokens)


def test_eager_engine_calls_the_dispatched_operators_and_gives_the_tokens_of_hugging_face(
    eager_run: Run, platform: str
) -> None:
    assert eager_run.tokens == WANTED[:2], eager_run.log[-4000:]
    assert eager_run.ran() == eager_rows(REFERENCE, eager_run.forwards)
    report = eager_run.report
    assert report is not None
    assert report["counts"] == "calls (eager mode)"
    assert report["compilation"] == "NONE"
    assert report["platform"] == PLATFORMS[platform][1]
    assert (report["left_to_framework"], report["not_served"], report["demotions"]) == ([], [], [])
    assert all("flag_gems is not installed" in row["passed_over"][0]["reason"] for row in report["operators"])
    assert "fl-dispatch on vllm" in eager_run.log


def test_compiled_engine_has_the_dispatched_operators_in_its_graph_and_gives_the_tokens_of_hugging_face(
    compiled_run: tuple[Run, int, list[list[int]]], platform: str
) -> None:
    run, layers, wanted = compiled_run
    assert run.tokens == wanted, run.log[-4000:]
    assert run.ran() == compiled_rows(REFERENCE, layers)
    report = run.report
    assert report is not None
    assert report["counts"].startswith("graph_sites: bound sites in compiled graphs")
    assert report["compilation"] == "DYNAMO_TRACE_ONCE"  # what vLLM makes of its default on a CPU, with Inductor
    assert report["graphs"] == {"LlamaModel": "traced in this process"}
    assert report["platform"] == PLATFORMS[platform][1]
    assert report["left_to_framework"] == []
