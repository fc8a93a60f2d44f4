# SPDX-License-Identifier: Apache-2.0
"""The GPU benchmark of what a step of decoding is made of: traces, a step's share by difference, engines that die."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import engines
import groups
import job_loop
import kernel_table
import pytest
import serve
import step_kernels
import traces
from figures import Job

GEMM, NORM, PREFILL = "gemm", "norm<bf16>", "prefill_attention"


def events(*found: tuple[str, str, float, float]) -> dict[str, Any]:
    """A trace of (category, name, start, duration), with what such files hold besides."""
    other: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name"},
        {"ph": "f", "cat": "kernel", "name": GEMM, "ts": 0},
    ]
    return {"traceEvents": other + [{"ph": "X", "cat": c, "name": n, "ts": t, "dur": d} for c, n, t, d in found]}


def written(folder: Path, trace: Mapping[str, Any], name: str = "x.trace.json.gz") -> Path:
    data = json.dumps(trace).encode()
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return folder / name


def trace(calls: Mapping[str, int], us: Mapping[str, float], overlap: float = 0.0) -> traces.Trace:
    """Of kernels that take so long a call."""
    return traces.Trace(calls, {name: count * us[name] for name, count in calls.items()}, overlap)


@pytest.mark.parametrize("name", ["x.trace.json.gz", "x.pt.trace.json"])
def test_only_whole_events_of_the_categories_count(tmp_path: Path, name: str) -> None:
    kernel = [("kernel", GEMM, 10.0, 4.0), ("kernel", NORM, 12.0, 3.0), ("kernel", GEMM, 20.0, 5.0)]
    path = written(
        tmp_path, events(*kernel, ("gpu_memcpy", "Memcpy", 30.0, 1.0), ("cuda_runtime", "launch", 0.0, 50.0)), name
    )
    found = traces.read(path, traces.CATEGORIES["GPU"])
    assert found.calls == {GEMM: 2, NORM: 1, "Memcpy": 1}
    assert found.us == {GEMM: 9.0, NORM: 3.0, "Memcpy": 1.0}
    assert found.overlap == 2.0  # from 12 to 14


def test_a_trace_without_a_kernel_says_what_it_holds(tmp_path: Path) -> None:
    path = written(tmp_path, events(("cpu_op", "aten::mm", 0.0, 1.0), ("cuda_runtime", "launch", 0.0, 1.0)))
    with pytest.raises(
        traces.TraceError, match=r"x\.trace\.json\.gz: no event of gpu_memcpy, gpu_memset, kernel; it holds"
    ):
        traces.read(path, traces.CATEGORIES["GPU"])
    with pytest.raises(traces.TraceError, match=r"1 cpu_op, 1 cuda_runtime, 1 kernel$"):
        traces.read(path, traces.CATEGORIES["GPU"])


def test_what_several_intervals_cover_counts_once() -> None:
    assert traces.union([(5.0, 6.0), (0.0, 4.0), (1.0, 2.0), (3.0, 5.5)]) == 6.0
    assert traces.union([(2.0, 3.0), (0.0, 1.0)]) == 2.0
    assert traces.union([]) == 0.0


def test_a_step_is_what_the_longer_job_has_more() -> None:
    us = {GEMM: 10.0, NORM: 2.0, PREFILL: 1000.0}
    short = trace({GEMM: 7, NORM: 3, PREFILL: 1}, us, overlap=5.0)
    long = trace({GEMM: 7 + 8 * 4, NORM: 3 + 8 * 2, PREFILL: 1}, us, overlap=5.0 + 8 * 1.5)
    found = traces.step([(short, long)], 8)
    assert {name: (kernel.calls, kernel.time.us, kernel.whole) for name, kernel in found.kernels.items()} == {
        GEMM: (4.0, 40.0, True),
        NORM: (2.0, 4.0, True),
    }
    assert (found.total.us, found.busy.us) == (44.0, 42.5)
    assert found.listed() == {GEMM: 4, NORM: 2}


def test_repetitions_give_medians_their_range_and_leave_the_noise_of_the_prefill_out() -> None:
    pairs = []
    for gemm, prefill, extra in ((10.0, 5000.0, 0), (11.0, 1000.0, 1), (14.0, 9000.0, 0)):
        us = {GEMM: gemm, PREFILL: prefill}
        pairs.append((trace({PREFILL: 1}, {PREFILL: 2000.0}), trace({GEMM: 4 + extra, PREFILL: 1}, us)))
    found = traces.step(pairs, 2)
    assert list(found.kernels) == [GEMM]
    assert found.kernels[GEMM].calls == 2.0  # one repetition divided its prefill otherwise
    assert (found.kernels[GEMM].time.us, found.kernels[GEMM].time.noise) == (27.5, 4.0)
    assert (found.total.us, found.total.noise) == (27.5, 4.0)
    assert traces.measured([3.0]) == traces.Measured(3.0, None)


def test_calls_that_are_no_whole_number_are_said_and_do_not_change_the_list() -> None:
    us = {GEMM: 10.0, NORM: 2.0}
    found = traces.step([(trace({GEMM: 1}, us), trace({GEMM: 9, NORM: 1}, us))], 4)
    assert (found.kernels[NORM].calls, found.kernels[NORM].whole) == (0.25, False)
    assert found.listed() == {GEMM: 2}
    assert kernel_table.not_whole({"native": found}) == [f"native: {NORM} 0.25"]
    (*_, last, _) = kernel_table.section({"native": found}, {"native": [1.0]})
    assert last == f"- Not a whole number of calls a step: native: {NORM} 0.25."


def test_the_clock_is_the_difference_of_two_jobs_in_the_same_round() -> None:
    jobs = step_kernels.decoding([1, 64], 4)
    assert [(job.requests, job.new) for job in jobs.values()] == [(1, 2), (1, 6), (64, 2), (64, 6)]
    seconds = [[0.1, 0.2], [0.5, 0.8], [1.0, 1.0], [1.4, 1.0]]
    rates = {
        name: {"native, kernels": [job.tokens / one for one in times]}
        for (name, job), times in zip(jobs.items(), seconds, strict=True)
    }
    found = step_kernels.clock(rates, jobs, 4)
    assert found["1"]["native"] == pytest.approx([100_000.0, 150_000.0])
    assert found["64"]["native"] == pytest.approx([100_000.0, 0.0])


class FakeEngine:
    """Writes a trace of four calls a token and leaves it to its kind what goes wrong in which job."""

    def __init__(self, name: str, folder: Path, wrong: str = "", job: int = 0) -> None:
        self.name, self._folder, self._wrong, self._job = name, folder, wrong, job
        self.running = self.stopped = False
        self.asked: list[dict[str, Any]] = []

    def resume(self) -> None:
        self.running = True

    def pause(self) -> None:
        self.running = False

    def ask(self, message: dict[str, Any]) -> None:
        assert self.running
        self.asked.append(message)
        wrong = self._wrong if len(self.asked) == self._job else ""
        if wrong == "dies":
            raise engines.EngineError(f"{self.name}: it ended; the end of its log:\nlines")
        kernel = [("kernel", GEMM, 10.0 * number, 2.0) for number in range(4 * message["new"])]
        (self._folder / "table.txt").write_text("vLLM writes such a file as well")
        if wrong != "writes nothing":
            written(self._folder, events(*kernel) if wrong != "sees no kernel" else events(), f"{self.name}.json.gz")

    def seconds(self) -> float:
        return 1.0

    def stop(self) -> None:
        self.stopped = True


def traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *others: Any
) -> tuple[list[Any], dict[str, str], list[Any]]:
    """The engines that are left, why others are not, and the traces after every round."""
    monkeypatch.setattr(step_kernels, "SETTLE_SECONDS", 0.0)
    alive = [FakeEngine("native", tmp_path), *others]
    failed: dict[str, str] = {}
    rounds: list[Any] = []
    arguments = SimpleNamespace(steps=8, repeats=2, activity="GPU")
    step_kernels.trace_all(alive, [1, 64], arguments, tmp_path, failed, lambda found: rounds.append({**found}))
    return alive, failed, rounds


def test_every_repetition_traces_each_job_and_removes_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (native,), failed, rounds = traced(tmp_path, monkeypatch)
    assert (failed, len(rounds), list(tmp_path.iterdir())) == ({}, 2, [])
    assert [(job["requests"], job["new"], job["trace"]) for job in native.asked] == [
        (1, 2, True), (1, 10, True), (64, 2, True), (64, 10, True)
    ] * 2  # fmt: skip
    (pairs, _) = rounds[-1]["native"].values()
    assert len(pairs) == 2
    assert traces.step(pairs, 8).listed() == {GEMM: 4}
    assert not native.running


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("dies", "vendor: it ended"),
        ("writes nothing", "0 traces instead of one of 1 requests, 10 tokens"),
        ("sees no kernel", "vendor.json.gz: no event of gpu_memcpy, gpu_memset, kernel; it holds 1 kernel"),
    ],
)
def test_an_engine_that_dies_or_writes_no_trace_is_dropped_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str, reason: str
) -> None:
    vendor = FakeEngine("vendor", tmp_path, wrong, job=2)
    alive, failed, rounds = traced(tmp_path, monkeypatch, vendor)
    assert [engine.name for engine in alive] == ["native"]
    assert failed == {"vendor": reason}
    assert vendor.stopped
    assert [list(found) for found in rounds] == [["native"]] * 2
    assert list(tmp_path.iterdir()) == []
    assert [len(pairs) for pairs in rounds[-1]["native"].values()] == [2, 2]


def test_engines_are_chosen_from_the_group_of_framework_and_mode() -> None:
    graphs = groups.group_of("sglang", False, ["native", "tuned"])
    assert graphs.engines == {"native": None, "tuned": {"CONFIG": "fl-tuned.yaml"}}
    assert (graphs.title, graphs.options) == ("SGLang", ())
    eager = groups.group_of("vllm", True, ["tuned", "reference"])
    assert eager.engines == {"tuned": {"CONFIG": "fl-tuned-vllm-eager.yaml"}, "reference": {"PREFER": "reference"}}
    assert (eager.title, eager.prefix, eager.options) == ("vLLM", "VLLM_FL_", ("--eager",))
    assert list(groups.GROUPS["vLLM eager"].only(["native", "tuned"]).engines) == ["native", "tuned"]
    with pytest.raises(
        SystemExit, match="unknown engine 'tund'; there are: native, native again, tuned, vendor, flagos"
    ):
        groups.GROUPS["vLLM eager"].only(["native", "tund"])


def test_names_have_no_spaces_around_them_and_nothings_are_none() -> None:
    assert groups.listed(" native again, tuned,") == ["native again", "tuned"]
    with pytest.raises(SystemExit, match="' ,' names no engine"):
        groups.listed(" ,")
    assert groups.GROUPS["eager"].only([]).engines == {}  # of a script that only asks for the framework's name


def test_the_groups_to_serve_are_known_before_any_starts() -> None:
    found = serve.chosen("eager; vLLM eager", "tuned,native again")
    assert {name: list(group.engines) for name, group in found.items()} == {
        "eager": ["native", "tuned", "native again"],
        "vLLM eager": ["native", "tuned", "native again"],
    }
    assert serve.chosen("eager", "") == {"eager": groups.GROUPS["eager"]}
    with pytest.raises(SystemExit, match="unknown group 'egaer'; there are: CUDA graphs; eager; "):
        serve.chosen("eager;egaer", "")
    with pytest.raises(SystemExit, match="' ;' names no group"):
        serve.chosen(" ;", "")
    with pytest.raises(SystemExit, match="unknown engine 'tuned'; there are: native, native again, vendor, flagos"):
        serve.chosen("eager;piecewise CUDA graphs", "tuned")  # which has none


def test_serving_starts_the_engines_of_its_group_and_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    def start(
        group: groups.Group, name: str, arguments: Any, failed: dict[str, str]
    ) -> tuple[list[Any], dict[str, Path]]:
        started.append(list(group.engines))
        return [], {}

    monkeypatch.setattr(serve, "start_group", start)
    monkeypatch.setattr(serve, "device", lambda: "a device")
    folders = [word for name in ("site", "own", "out") for word in (f"--{name}", str(tmp_path / name))]
    assert serve.main([*folders, "--groups", "eager", "--engines", "native again"]) == 0
    assert started == [["native", "native again"]]
    (page,) = (tmp_path / "out").glob("*.md")
    assert "serve.py --groups eager --engines 'native again' --rounds 10 --seconds 150" in page.read_text(
        encoding="utf-8"
    )


def test_a_page_of_kernels_tells_the_repetitions_that_were_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = (trace({GEMM: 4}, {GEMM: 2.0}), trace({GEMM: 8}, {GEMM: 2.0}))
    pages: list[str] = []

    def all_traces(engines: Any, counts: Any, arguments: Any, folder: Any, failed: Any, after_round: Any) -> None:
        for made in (1, 2):
            after_round({"native, kernels": {1: [pair] * made}})
            pages.append((tmp_path / "kernels.md").read_text(encoding="utf-8"))

    monkeypatch.setattr(step_kernels, "start_group", lambda *_: ([], {}))
    monkeypatch.setattr(step_kernels, "measure", lambda *_, **how: {})
    monkeypatch.setattr(step_kernels, "clock", lambda *_: {"1": {"native": [4.0] * 6}})
    monkeypatch.setattr(step_kernels, "trace_all", all_traces)
    monkeypatch.setattr(step_kernels, "device", lambda: "a device")
    folders = [word for name in ("site", "own") for word in (f"--{name}", str(tmp_path / name))]
    call = [
        *folders,
        "--out",
        str(tmp_path),
        "--engines",
        "native",
        "--requests",
        "1",
        "--repeats",
        "3",
        "--seconds",
        "7.5",
    ]
    step_kernels.main(call)
    assert "--repeats 3 --rounds 9 --seconds 7.5" in pages[0]
    assert "tokens, once, and `other`" in pages[0]
    assert "half of the range of 2 repetitions" in pages[1]


def test_a_job_is_only_profiled_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(2, 3, 4, "new").message()
    jobs = [job, {**job, "trace": True}, job]
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{json.dumps(one)}\n" for one in jobs)))
    done: list[str] = []

    @contextlib.contextmanager
    def profiler() -> Iterator[None]:
        done.append("start")
        yield
        done.append("stop")

    def generate(prompts: list[list[int]], new: int) -> list[int]:
        done.append("generate")
        return [new for _ in prompts]

    answers = io.StringIO()
    job_loop.answer_jobs(answers, 2000, generate, lambda prompts, new: [], profiler)
    assert done == ["generate", "start", "generate", "stop", "generate"]
    assert [line.split()[0] for line in answers.getvalue().splitlines()] == ["READY", *["SECONDS"] * 3]
