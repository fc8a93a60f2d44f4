# SPDX-License-Identifier: Apache-2.0
"""The GPU benchmark's division of CPUs: which share a core, which thread is the busiest, and where threads are afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import placement
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads are placed on Linux only")

BUSY_AND_IDLE = """
import os, threading, time
idle = threading.Thread(target=time.sleep, args=(60,), daemon=True)
idle.start()
child = os.fork()
if not child:
    time.sleep(60)
end = time.perf_counter() + 0.3
while time.perf_counter() < end:
    pass
print(threading.get_native_id(), idle.native_id, child, flush=True)
time.sleep(60)
"""


def speeds(shared: dict[int, float], alone: int = 1000) -> placement.speed:
    def speed(cpu: int, beside: int | None = None, seconds: float = 0.05) -> int:
        return round(alone * (1.0 if beside is None else shared.get(beside, 0.97)))

    return speed


def test_the_cpu_that_shares_a_core_with_the_busiest_is_left_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "speed", speeds({3: 0.55}))
    chosen = placement.choose(range(8))
    assert chosen == placement.Placement(2, frozenset({0, 1, 4, 5, 6, 7}), frozenset({3}))
    assert str(chosen) == (
        "the busiest thread of each engine on CPU 2 (left empty for it: 3), the others on 0, 1, 4, 5, 6, 7"
    )


def test_where_every_cpu_seems_to_share_none_is_left_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "speed", speeds(dict.fromkeys(range(8), 0.5)))
    assert placement.choose(range(8)) == placement.Placement(2, frozenset({0, 1, 3, 4, 5, 6, 7}))


def test_as_many_cpus_may_be_left_empty_as_leave_enough_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "speed", speeds(dict.fromkeys((3, 4, 5), 0.5)))
    assert placement.choose(range(8)) == placement.Placement(2, frozenset({0, 1, 6, 7}), frozenset({3, 4, 5}))


def test_few_cpus_are_not_divided() -> None:
    assert placement.choose(range(placement.LEAST - 1)) is None


def children() -> list[int]:
    return list(map(int, Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()))


def test_the_speed_of_a_cpu_is_counted_while_the_other_is_busy_and_nothing_is_left_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not by how much slower it is: that other work on this machine may hide."""
    run, cpu, already = subprocess.run, max(os.sched_getaffinity(0)), set(children())
    busy: list[list[set[int]]] = []

    def noting(*args: Any, **kwargs: Any) -> Any:
        busy.append([os.sched_getaffinity(child) for child in children() if child not in already])
        return run(*args, **kwargs)

    monkeypatch.setattr(subprocess, "run", noting)
    assert placement.speed(cpu, seconds=0.02) > 0
    assert placement.speed(cpu, beside=cpu, seconds=0.02) > 0
    assert busy == [[]] * 3 + [[{cpu}]] * 3
    assert set(children()) == already


@pytest.fixture
def group() -> Iterator[tuple[int, list[int]]]:
    """A process group with a busy main thread, an idle thread and an idle child: its number, and the three."""
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY_AND_IDLE], stdout=subprocess.PIPE, text=True, process_group=0
    )
    assert process.stdout is not None
    try:
        yield process.pid, list(map(int, process.stdout.readline().split()))
    finally:
        os.killpg(process.pid, 9)
        process.wait()
        process.stdout.close()


def test_the_busiest_thread_of_a_group_gets_its_cpu_and_all_others_theirs(group: tuple[int, list[int]]) -> None:
    number, (busy, idle, child) = group
    assert set(placement.processes(number)) == {number, child}
    first, *rest = sorted(os.sched_getaffinity(0))
    others = frozenset(rest or [first])
    placement.pin(number, placement.Placement(first, others), {})
    assert os.sched_getaffinity(busy) == {first}
    assert os.sched_getaffinity(idle) == os.sched_getaffinity(child) == others


def test_the_thread_that_was_busy_only_until_then_is_not_the_busiest(group: tuple[int, list[int]]) -> None:
    number, (busy, idle, child) = group
    before = placement.spent(number)
    assert max(before, key=lambda thread: before[thread]) == busy
    first = min(os.sched_getaffinity(0))
    later = before[child] - 0.01  # what the child has done since is more
    placement.pin(number, placement.Placement(first, frozenset(os.sched_getaffinity(0))), {**before, child: later})
    assert os.sched_getaffinity(child) == {first}
    assert os.sched_getaffinity(busy) == os.sched_getaffinity(idle) == os.sched_getaffinity(0)


def test_a_thread_that_ends_meanwhile_keeps_no_other_one_from_its_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    placed: dict[int, set[int]] = {}

    def place(thread: int, cpus: set[int]) -> None:
        if thread == 1:
            raise ProcessLookupError
        placed[thread] = set(cpus)

    monkeypatch.setattr(placement, "spent", lambda group: {1: 0.5, 2: 0.75, 3: 0.25})
    monkeypatch.setattr(os, "sched_setaffinity", place)
    placement.pin(1, placement.Placement(0, frozenset({4, 5})), {})
    assert placed == {2: {0}, 3: {4, 5}}


def test_the_time_of_a_thread_is_read_whatever_its_name_is() -> None:
    found: list[tuple[float, float]] = []

    def work() -> None:
        number = threading.get_native_id()
        Path(f"/proc/self/task/{number}/comm").write_text("a) S 1 (")
        while time.thread_time() < 0.1:
            pass
        found.append((placement.cpu_seconds(os.getpid())[number], time.thread_time()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    ((read, spent),) = found
    assert read == pytest.approx(spent, abs=0.03)


def test_a_group_that_is_gone_is_no_error() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""], process_group=0)
    process.wait()
    placement.pin(process.pid, placement.Placement(0, frozenset({0})), {})


def test_the_stolen_share_is_that_of_all_cpu_time() -> None:
    before = placement.cpu_times()
    time.sleep(0.05)
    assert 0.0 <= placement.stolen_share(before, placement.cpu_times()) <= 1.0
    assert placement.stolen_share([0] * 10, [50, 0, 20, 10, 0, 0, 0, 20, 50, 0]) == 0.2
