# SPDX-License-Identifier: Apache-2.0
"""What a trace of torch's profiler says of a step of decoding, by difference.

A job that generates N more tokens than another one of the same prompts has N steps more: what it has more of each kernel, divided
by N, is a step's share.
"""

from __future__ import annotations

import gzip
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: The activity that is asked of the profiler to the categories of events that count.
CATEGORIES: Mapping[str, tuple[str, ...]] = {"GPU": ("kernel", "gpu_memcpy", "gpu_memset"), "CPU": ("cpu_op",)}


class TraceError(RuntimeError):
    """A trace is missing or holds no event that counts."""


@dataclass(frozen=True)
class Trace:
    """Events of one job.

    Args:
        calls: of each kernel, by its whole name.
        us: of each kernel, all calls together.
        overlap: what ``us`` has more than the microseconds in which at least one of them ran.
    """

    calls: Mapping[str, int]
    us: Mapping[str, float]
    overlap: float


@dataclass(frozen=True)
class Measured:
    """A duration.

    Args:
        us: the median.
        noise: half of the range of all repetitions; None where there was one.
    """

    us: float
    noise: float | None


@dataclass(frozen=True)
class Kernel:
    """A kernel's share of a step.

    Args:
        calls: a step.
        time: all of them together.
    """

    calls: float
    time: Measured

    @property
    def whole(self) -> bool:
        """Whether a step calls it a whole number of times."""
        return float(self.calls).is_integer()


@dataclass(frozen=True)
class Step:
    """What a step of decoding is made of.

    Args:
        kernels: by their whole names; none that takes no part in it.
        total: of all kernels.
        busy: as ``total``, but what overlaps counts once.
    """

    kernels: Mapping[str, Kernel]
    total: Measured
    busy: Measured

    def listed(self) -> dict[str, int]:
        """The kernels with their calls, to the next whole number; without those that most steps have not."""
        rounded = {name: round(kernel.calls) for name, kernel in self.kernels.items()}
        return {name: calls for name, calls in rounded.items() if calls}


def read(path: Path, categories: Iterable[str]) -> Trace:
    """The events of these categories of a trace in Chrome's format, ``.json`` or ``.json.gz``.

    Raises:
        TraceError: it has none; the message says which there are.
    """
    data = path.read_bytes()
    events: list[dict[str, Any]] = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)["traceEvents"]
    wanted = set(categories)
    ours = [event for event in events if event.get("ph") == "X" and event.get("cat") in wanted]
    if not ours:
        there = Counter(str(event["cat"]) for event in events if "cat" in event)
        found = ", ".join(f"{count} {category}" for category, count in sorted(there.items())) or "nothing"
        raise TraceError(f"{path.name}: no event of {', '.join(sorted(wanted))}; it holds {found}")
    calls = Counter(event["name"] for event in ours)
    us = dict.fromkeys(calls, 0.0)
    for event in ours:
        us[event["name"]] += event["dur"]
    busy = union((event["ts"], event["ts"] + event["dur"]) for event in ours)
    return Trace(calls, us, sum(us.values()) - busy)


def union(intervals: Iterable[tuple[float, float]]) -> float:
    """The length of what these intervals cover together."""
    covered, end = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        covered += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return covered


def step(pairs: Sequence[tuple[Trace, Trace]], steps: int) -> Step:
    """The share of a step.

    Args:
        pairs: of every repetition the trace of the job without steps and that of the job with them.
        steps: of the latter.
    """
    kernels = {}
    for name in sorted({name for pair in pairs for trace in pair for name in trace.calls}):
        # Medians before the difference: an engine may now and then divide a prefill otherwise.
        without, with_them = (statistics.median(pair[place].calls.get(name, 0) for pair in pairs) for place in range(2))
        time = measured([(long.us.get(name, 0.0) - short.us.get(name, 0.0)) / steps for short, long in pairs])
        if with_them != without:
            kernels[name] = Kernel((with_them - without) / steps, time)
    # Of these kernels alone: those of the prefill only add their noise.
    totals = [
        sum(long.us.get(name, 0.0) - short.us.get(name, 0.0) for name in kernels) / steps for short, long in pairs
    ]
    overlaps = [(long.overlap - short.overlap) / steps for short, long in pairs]
    busy = [total - overlap for total, overlap in zip(totals, overlaps, strict=True)]
    return Step(kernels, measured(totals), measured(busy))


def measured(values: Sequence[float]) -> Measured:
    """Of all repetitions."""
    return Measured(statistics.median(values), (max(values) - min(values)) / 2 if len(values) > 1 else None)
