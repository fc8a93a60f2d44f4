# SPDX-License-Identifier: Apache-2.0
"""Clocks: how long a call keeps the host busy, how long it takes on the device inside of a replayed graph."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

Call = Callable[[], Any]

#: Host time of a round: long against the clock, and few enough calls that the queue to a device never fills.
_ROUND_SECONDS = 0.01
_MAX_CALLS = 100


def synchronize(device: str) -> None:
    """Wait for the device; nothing to wait for on a CPU."""
    module = getattr(torch, device, None)
    if device != "cpu" and module is not None:
        module.synchronize()


class Between:
    """What a decoder's layer does between two calls of an operator, as far as the host is concerned: tiny projections, attention,
    views. A call that is repeated by itself finds its code in the fastest cache, which no model grants it.
    """

    def __init__(self, device: str) -> None:
        with torch.inference_mode(False):  # as a model's weights are
            self._joint, self._output = (torch.nn.Linear(64, size, device=device) for size in (192, 64))
        self._x = torch.randn(4, 64, device=device)
        self.device = device

    def __call__(self) -> None:
        """Once; it starts some five kernels, of which a hundred calls do not fill a device's queue."""
        parts = self._joint(self._x).split(64, dim=-1)
        query, key, value = (part.view(1, 4, 2, 32).transpose(1, 2) for part in parts)
        mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        self._output(mixed.transpose(1, 2).reshape(4, 64)).add_(self._x)


def calls_a_round(call: Call, device: str) -> int:
    """How many calls make a round of host time."""
    synchronize(device)
    started = time.perf_counter()
    call()
    synchronize(device)
    return max(1, min(_MAX_CALLS, int(_ROUND_SECONDS / max(time.perf_counter() - started, 1e-7))))


def host_us(call: Call, calls: int, device: str) -> float:
    """Microseconds a call that is repeated keeps the host busy; on a CPU that is all of it."""
    synchronize(device)
    started = time.perf_counter()
    for _ in range(calls):
        call()
    elapsed = time.perf_counter() - started
    synchronize(device)
    return elapsed / calls * 1e6


def host_us_among_others(calls: Sequence[Call], count: int, between: Between) -> float:
    """The same with something else between any two calls, which does not count.

    Args:
        calls: take turns: a model has many layers.
        count: of calls.
        between: the something else.
    """
    elapsed = 0.0
    synchronize(between.device)
    for call in itertools.islice(itertools.cycle(calls), count):
        between()
        started = time.perf_counter()
        call()
        elapsed += time.perf_counter() - started
    synchronize(between.device)
    return elapsed / count * 1e6


class Replayed:
    """One CUDA graph of several calls, each on inputs of its own, so that they do not come out of the cache."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = len(calls)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # as torch has it
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                calls[0]()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            for call in calls:
                call()
        self._graph.replay()

    def device_us(self) -> float:
        """Microseconds a call takes on the device."""
        repeats = max(1, 64 // self._calls)
        event: Any = torch.cuda.Event
        begin, end = (event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(repeats):
            self._graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / (repeats * self._calls) * 1e3


def has_graphs(device: str) -> bool:
    """Whether device time can be measured here: inside of a CUDA graph."""
    return device == "cuda"


def bandwidth(device: str) -> float:
    """Bytes a second, read and written, of a large elementwise kernel: the floor under every implementation."""
    source = torch.randn(2**28 if device == "cuda" else 2**24, device=device)
    target = torch.empty_like(source)
    call = functools.partial(torch.neg, source, out=target)
    call()
    clock = Replayed([call]).device_us if has_graphs(device) else functools.partial(_waited_us, call, device)
    return 2 * source.nbytes / (min(clock() for _ in range(5)) * 1e-6)


def _waited_us(call: Call, device: str) -> float:
    started = time.perf_counter()
    call()
    synchronize(device)
    return (time.perf_counter() - started) * 1e6
