# SPDX-License-Identifier: Apache-2.0
"""The GPU benchmark of steps that take turns within one engine: what runs in which step, what counts, and its statistics."""

from __future__ import annotations

import importlib.metadata
import json
import math
import random
import statistics
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import alternating
import pytest
import steps


class Engine:
    """A scheduler of two bound layers whose steps take as long as their way says; notes the way of every step."""

    def __init__(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = 0.0
        self.ran: list[str] = []
        monkeypatch.setattr(alternating, "time", SimpleNamespace(perf_counter=lambda: self.clock))
        self.layers = [SimpleNamespace(_forward_method="ours") for _ in range(2)]
        self.alternation = alternating.Alternation(file)
        for layer in self.layers:
            self.alternation.bound(layer, "native", "ours", "rms_norm")

    def _run(self, scheduler: Any, batch: Any) -> str:
        (way,) = {layer._forward_method for layer in self.layers}
        if batch.forward_mode.is_decode():
            self.ran.append(way)
        self.clock += {"native": 0.010, "ours": 0.012}[way]
        return "result"

    def batch(self, requests: int, decode: bool = True) -> None:
        mode = SimpleNamespace(is_decode=lambda: decode)
        batch = SimpleNamespace(forward_mode=mode, reqs=[None] * requests)
        assert self.alternation.run_batch(self._run, None, batch) == "result"


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    return Engine(tmp_path / "lines", monkeypatch)


def written(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "lines").read_text(encoding="utf-8").splitlines()]


def test_ways_take_turns_of_several_steps_forwards_and_backwards(engine: Engine) -> None:
    engine.batch(4, decode=False)
    for _ in range(6 * alternating.STEPS):
        engine.batch(4)
    turns = [engine.ran[turn * alternating.STEPS : (turn + 1) * alternating.STEPS] for turn in range(6)]
    assert all(len(set(turn)) == 1 for turn in turns)
    assert [turn[0] for turn in turns] == ["native", "ours", "native", "native", "ours", "native"]
    assert [alternating.way(turn) for turn in range(7)] == [*alternating.CYCLE, *alternating.CYCLE[::-1], "native"]


def test_lines_are_written_at_the_next_prefill_and_hold_the_time_of_a_step(engine: Engine, tmp_path: Path) -> None:
    engine.batch(4, decode=False)
    for _ in range(3 * alternating.STEPS + 1):
        engine.batch(4)
    assert not (tmp_path / "lines").exists()
    engine.batch(1, decode=False)
    lines = written(tmp_path)
    assert [(line["way"], line["us"], line["layers"], line["requests"]) for line in lines] == [
        ("native", 10_000.0, 2, 4),
        ("bound", 12_000.0, 2, 4),
        ("again", 10_000.0, 2, 4),
    ]
    assert len({line["generation"] for line in lines}) == 1


def test_the_first_steps_of_a_turn_do_not_count(engine: Engine, tmp_path: Path) -> None:
    engine.batch(4, decode=False)
    for step in range(alternating.STEPS + 1):
        engine.batch(4)
        engine.clock += 1.0 if step < alternating.SETTLING else 0.0
    engine.batch(4, decode=False)
    assert [line["us"] for line in written(tmp_path)] == [10_000.0]


def test_a_turn_that_is_cut_short_or_changes_its_requests_is_no_line(engine: Engine, tmp_path: Path) -> None:
    engine.batch(4, decode=False)
    for requests in [3] * (alternating.STEPS - 1) + [4] * (alternating.STEPS + 1):
        engine.batch(requests)
    engine.batch(4, decode=False)
    assert [line["requests"] for line in written(tmp_path)] == [4]


def test_lines_of_layers_that_are_not_timed_tell_nothing_of_operators(engine: Engine, tmp_path: Path) -> None:
    engine.batch(4, decode=False)
    for _ in range(alternating.STEPS + 1):
        engine.batch(4)
    engine.batch(4, decode=False)
    assert ["operators" in line for line in written(tmp_path)] == [False]
    assert {layer._forward_method for layer in engine.layers} == {"ours"}  # itself, and nothing around it


class Layer:
    """A layer with the framework's own method, whose calls take a time in microseconds of ``clock``."""

    def __init__(self, clock: list[float], native: float) -> None:
        self._clock, self._native = clock, native
        self._forward_method: Any = self.forward

    def forward(self, value: str, *, more: str = "") -> str:
        self._clock[0] += self._native * 1e-6
        return f"native {value}{more}"


def bound_method(layer: Layer, us: float) -> MethodType:
    """As the adapters bind: a function of the layer as its method."""

    def forward(self: Layer, value: str, *, more: str = "") -> str:
        self._clock[0] += us * 1e-6
        return f"bound {value}{more}"

    return MethodType(forward, layer)


def test_the_calls_of_each_operator_are_timed_in_the_steps_that_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(alternating, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    alternation = alternating.Alternation(tmp_path / "lines", timed=True)
    norms, rotary, idle = [Layer(clock, 10.0) for _ in range(2)], Layer(clock, 30.0), Layer(clock, 1.0)
    for layer, operator, us in [(norms[0], "rms_norm", 20.0), (norms[1], "rms_norm", 24.0), (rotary, "rope", 33.0)]:
        alternation.bound(layer, layer.forward, bound_method(layer, us), operator)
    alternation.bound(idle, idle.forward, bound_method(idle, 1.0), "never_called")
    alternation.prefill()
    said = []
    for step in range(3 * alternating.STEPS + 1):
        alternation.decode(4)
        # What does not count takes longer, and one module may be called by several layers.
        clock[0] += 0.001
        calls = 5 if step % alternating.STEPS < alternating.SETTLING else 1
        for layer in [*norms * calls, *[rotary] * 3 * calls]:
            said.append(layer._forward_method("x", more="y"))
    alternation.prefill()
    native = {"rms_norm": [2.0, 10.0], "rope": [3.0, 30.0]}
    bound = {"rms_norm": [2.0, 22.0], "rope": [3.0, 33.0]}
    assert [line["operators"] for line in written(tmp_path)] == [native, bound, native]
    assert [line["us"] for line in written(tmp_path)] == [1110.0, 1143.0, 1110.0]
    assert set(said) == {"native xy", "bound xy"}


def test_in_vllm_a_step_of_decoding_is_one_in_which_every_request_has_one_token(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(engine.alternation, "decode", seen.append)
    monkeypatch.setattr(engine.alternation, "prefill", lambda: seen.append("prefill"))
    for tokens, new in (({"a": 1, "b": 1}, []), ({"a": 1, "b": 16}, []), ({"a": 1, "b": 1}, ["b"]), ({}, [])):
        scheduled = SimpleNamespace(num_scheduled_tokens=tokens, scheduled_new_reqs=new)
        engine.alternation.execute_model(scheduled)
    assert seen == [2, "prefill", "prefill", "prefill"]


def test_the_plugin_is_found_by_both_frameworks(tmp_path: Path) -> None:
    folder = steps.plugin_folder(tmp_path / "plugin")
    (found,) = importlib.metadata.distributions(path=[str(folder)])
    entries = {entry.group: entry.value for entry in found.entry_points}
    assert entries == {
        "sglang.srt.plugins": "alternating:register",
        "vllm.general_plugins": "alternating:register_in_vllm",
    }
    assert all(hasattr(alternating, value.partition(":")[2]) for value in entries.values())


def lines(*, bound: float, count: int = 40, requests: int = 4) -> list[dict[str, Any]]:
    """Whole cycles on a host whose speed wanders, and the beginning of one more."""
    numbers, found, speed = random.Random(3), [], 1.0
    for turn in range(count * 3 + 1):
        if turn % 3 == 0:
            speed = numbers.uniform(0.5, 1.5)
        way = alternating.way(turn)
        us = (1000.0 * bound if way == "bound" else 1000.0) * speed * numbers.uniform(0.99, 1.01)
        found.append({"generation": 0, "turn": turn, "requests": requests, "way": way, "layers": 2, "us": us})
    return found


def test_ratios_are_those_within_a_cycle_whatever_the_host_does_between_them() -> None:
    found = steps.summary([*lines(bound=1.1), *lines(bound=3.0, requests=1)], 4)
    median, low, high = found["ratio"]
    assert found["cycles"] == 40
    assert low < median < high
    assert median == pytest.approx(1 / 1.1, abs=0.005)
    assert high - low < 0.02
    assert found["again"][0] == pytest.approx(1.0, abs=0.005)
    assert found["more_us"][0] == pytest.approx(0.1 * found["native_us"], rel=0.2)


def test_the_interval_of_the_median_is_that_of_order_statistics() -> None:
    # For ten values the second smallest and largest: one or fewer of ten coins has a probability of 1.07 %, two of 5.5 %.
    assert steps.median_interval([float(value) for value in range(1, 11)]) == (5.5, 2.0, 9.0)
    assert steps.median_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == (3.5, 1.0, 6.0)
    assert [math.isnan(value) for value in steps.median_interval([1.0] * 5)] == [False, True, True]
    assert all(math.isnan(value) for value in steps.median_interval([]))


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    numbers, held = random.Random(5), 0
    for _ in range(400):
        _, low, high = steps.median_interval([numbers.expovariate(1.0) for _ in range(25)])
        held += low <= math.log(2) <= high
    assert 0.93 <= held / 400 <= 0.99


def with_operators(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of every way the same calls, but of a norm bound calls that take 3 us more; in one turn there was no activation."""
    for line in found:
        own = 20.0 + line["us"] / 100
        bound = line["way"] == "bound"
        line["operators"] = {"rms_norm": [65.0, own + 3.0 * bound], "silu_and_mul": [32.0, own - 2.0 * bound]}
    del found[1]["operators"]["silu_and_mul"]
    return found


def test_operators_differ_by_their_times_within_a_cycle() -> None:
    found = with_operators(lines(bound=1.0))
    norm, activation = steps.summary(found, 4)["operators"]
    assert (norm["operator"], norm["calls"], activation["operator"], activation["calls"]) == (
        "rms_norm",
        65.0,
        "silu_and_mul",
        32.0,
    )
    whole = [found[start : start + 3] for start in range(0, 120, 3)]
    own = [statistics.fmean(x["operators"]["rms_norm"][1] for x in cycle if x["way"] != "bound") for cycle in whole]
    assert norm["native_us"] == pytest.approx(statistics.median(own))
    assert norm["bound_us"] == pytest.approx(norm["native_us"] + 3.0, abs=0.1)
    for row, more in ((norm, 3.0), (activation, -2.0)):
        median, low, high = row["more_us"]
        assert low < median < high
        assert median == pytest.approx(more, abs=0.05)
        assert high - low < 0.2


def test_an_operator_without_calls_in_a_way_is_no_row() -> None:
    found = with_operators(lines(bound=1.0, count=1))
    assert [row["operator"] for row in steps.summary(found, 4)["operators"]] == ["rms_norm"]
    assert steps.summary(lines(bound=1.0), 4)["operators"] == []


def test_the_table_says_what_was_compared_and_what_is_missing() -> None:
    found = lines(bound=1.1)
    row = steps.summary(found, 4)
    result = {"title": "t", "date": "d", "command": "c", "setting": "s", "versions": {"torch": "2"}, "choices": {}}
    text = steps.table({**result, "engines": {"vendor": [row]}, "failed": {"flagos": "died"}})
    median = statistics.median(ways["native"]["us"] / ways["bound"]["us"] for ways in steps.cycles(found, 4))
    assert f"| vendor | 4 | 2 | {row['native_us']:,.0f} | {median:.3f} (" in text
    assert text.count("| 40 |") == 1
    assert "flagos is missing, died" in text
    assert "operator" not in text
    row["operators"] = [
        {"operator": "rms_norm", "calls": 65.0, "native_us": 20.0, "bound_us": 23.456, "more_us": (3.4, -1.0, 4.0)}
    ]
    text = steps.table({**result, "engines": {"vendor": [row]}, "failed": {"flagos": "died"}})
    assert "| vendor | 4 | rms_norm | 65 | 20.00 | 23.46 | +3.40 (-1.00 to +4.00) |" in text
    assert text.endswith("|\n\nflagos is missing, died\n")
    ran = {"choices": {"vendor": ["rms_norm: x"]}, "policies": {"vendor": "p.yaml"}, "problems": ["y"]}
    text = steps.table({**result, **ran, "engines": {}, "failed": {}})
    assert "Not as the policy says: y\nLayers of vendor by p.yaml:\n\n```\nrms_norm: x\n```" in text
