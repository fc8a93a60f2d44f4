# SPDX-License-Identifier: Apache-2.0
"""Which CPUs the threads of engines run on: for all engines the same, and the busiest thread of each alone on its core.

Where the host is the limit, an engine whose busiest thread shares a core with another one is half as fast, and the operating system
moves threads within seconds; a virtual machine does not even say which of its CPUs are one core.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

#: Fewer CPUs than these are not divided.
LEAST = 6
#: A CPU on which a thread gets less than this part of its speed while another one is busy shares a core with it.
SHARED = 0.8
_SPIN = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
seconds, count = float(sys.argv[2]), 0
print("started", flush=True)
end = time.perf_counter() + seconds
while time.perf_counter() < end:
    count += 1
print(count)
"""


@dataclass(frozen=True)
class Placement:
    """CPUs by use.

    Args:
        busiest: for the busiest thread of each engine.
        others: for all their other threads.
        siblings: left empty, as they share a core with ``busiest``.
    """

    busiest: int
    others: frozenset[int]
    siblings: frozenset[int] = frozenset()

    def __str__(self) -> str:
        shared = f" (left empty for it: {_listed(self.siblings)})" if self.siblings else ""
        return f"the busiest thread of each engine on CPU {self.busiest}{shared}, the others on {_listed(self.others)}"


def choose(cpus: Iterable[int]) -> Placement | None:
    """A division of these CPUs, after measuring which share a core; None where they are too few."""
    busiest, *rest = sorted(cpus, key=lambda cpu: (cpu < 2, cpu))  # the first ones serve interrupts
    if len(rest) + 1 < LEAST:
        return None
    alone = speed(busiest)
    siblings = frozenset(cpu for cpu in rest if speed(busiest, beside=cpu) < SHARED * alone)
    others = frozenset(rest) - siblings
    # A machine that other work disturbs shows siblings everywhere: then nothing is known of them.
    return Placement(busiest, others, siblings) if len(others) >= LEAST - 2 else Placement(busiest, frozenset(rest))


def speed(cpu: int, beside: int | None = None, seconds: float = 0.05) -> int:
    """How often a loop runs on one CPU, the best of three, while another CPU is busy or not."""
    with contextlib.ExitStack() as ends:
        if beside is not None:
            command = [sys.executable, "-S", "-c", _SPIN, str(beside), "60"]
            process = ends.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            ends.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()
        command = [sys.executable, "-S", "-c", _SPIN, str(cpu), str(seconds)]
        runs = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(3)]
        return max(int(run.stdout.split()[-1]) for run in runs)


def spent(group: int) -> dict[int, float]:
    """Processor time of each thread of a process group."""
    return {thread: seconds for process in processes(group) for thread, seconds in cpu_seconds(process).items()}


def pin(group: int, placement: Placement, before: Mapping[int, float]) -> None:
    """Move every thread of a process group to its CPUs. Threads that are started later begin where their maker is.

    Args:
        group: its number.
        placement: the CPUs.
        before: what was ``spent`` until it served: what a thread did to load and compile says nothing about serving.
    """
    threads = spent(group)
    if not threads:
        return
    busiest = max(threads, key=lambda thread: threads[thread] - before.get(thread, 0.0))
    for thread in threads:
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.sched_setaffinity(thread, {placement.busiest} if thread == busiest else placement.others)


def processes(group: int) -> list[int]:
    """Those of a process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.getpgid(int(entry.name)) == group:
                    found.append(int(entry.name))
    return found


def cpu_seconds(process: int) -> dict[int, float]:
    """Processor time of each thread."""
    found = {}
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(OSError):
                # After the name in brackets, which may hold anything: state first, user and system time twelfth and thirteenth.
                fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                found[int(entry.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def stolen_share(before: list[int], after: list[int]) -> float:
    """The part of the time of a virtual machine's CPUs that its host gave to others, between two ``cpu_times``."""
    spent = [now - then for then, now in zip(before, after, strict=True)]
    return spent[7] / max(1, sum(spent[:8]))


def cpu_times() -> list[int]:
    """Of all CPUs together: user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice."""
    with Path("/proc/stat").open(encoding="utf-8") as file:
        return [int(word) for word in file.readline().split()[1:]]


def _listed(cpus: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(cpus)))
