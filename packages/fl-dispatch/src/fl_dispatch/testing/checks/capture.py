# SPDX-License-Identifier: Apache-2.0
"""``capture``: what declares ``capture_safe`` can be captured into a device graph and replayed with other inputs.

Where the device has no graphs, it is still looked for what no capture survives: reading a value back to the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fl_dispatch.ops.spec import Sample
from fl_dispatch.testing.calls import Results, as_results, copied, described, run, samples_for
from fl_dispatch.testing.case import Case, CheckFailed, Figures, NotApplicable, Target
from fl_dispatch.testing.checks.compiled import dtype_of_models
from fl_dispatch.testing.families import sized_samples
from fl_dispatch.testing.judge import Worst, compare

#: Operators whose result, or whose result's shape, the host has to wait for.
_READS = (
    "_local_scalar_dense",
    "item",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "equal",
)


def cases(target: Target) -> Iterator[Case]:
    """Two."""
    meaning = "reads no value back to the host"
    yield Case("capture", meaning, partial(_host_reads, target), "host_reads", target)
    meaning = "a captured graph computes from the inputs that a replay finds"
    yield Case("capture", meaning, partial(_replay, target), "replay", target)


def _declared(target: Target) -> None:
    if not target.impl.capture_safe:
        raise NotApplicable("it does not declare capture_safe")


class _NoHostReads(TorchDispatchMode):  # type: ignore[no-untyped-call]  # as torch has it
    """Notes every operator that makes the host wait for the device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as torch has it
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(getattr(getattr(func, "overloadpacket", func), "__name__", func))
        if name in _READS and getattr(func, "namespace", "") == "aten":
            self.found.append(f"aten::{name}")
        return func(*args, **(kwargs or {}))


def _host_reads(target: Target) -> Figures:
    _declared(target)
    calls = 0
    for dtype in target.dtypes:
        for family, sample in samples_for(target, dtype):
            if family == "model_sizes":
                continue
            given, _ = copied(sample)
            with _NoHostReads() as mode:
                run(target, given, dtype)
            calls += 1
            if mode.found:
                raise CheckFailed(
                    f"declares capture_safe and reads values back to the host: {', '.join(dict.fromkeys(mode.found))}",
                    described(sample, dtype),
                    {"hint": ".item(), .tolist(), bool(tensor) and nonzero() do that; a capture fails on them"},
                )
    return {"calls": calls}


def _replay(target: Target) -> Figures:
    _declared(target)
    device = torch.get_device_module(target.device)
    kind = getattr(device, f"{target.device.upper()}Graph", None)
    if kind is None or not hasattr(device, "graph"):
        raise NotApplicable(f"torch has no graphs for device {target.device}")
    dtype, worst = dtype_of_models(target), Worst()
    for tokens in (1, 16, 256):
        for index, sample in enumerate(sized_samples(target.spec, dtype, target.device, target.seed, tokens)):
            if target.verdict((sample.obj, *sample.args), sample.kwargs) is not None:
                continue
            static, _ = copied(sample)
            try:
                graph, results = _capture(device, kind, partial(_call, target, static))
            except CheckFailed:
                raise
            except Exception as error:
                raise CheckFailed(
                    f"the capture raised {type(error).__name__}: {error}", described(sample, dtype)
                ) from error
            for seed in (target.seed + 1, target.seed + 2):
                fresh = list(sized_samples(target.spec, dtype, target.device, seed, tokens))[index]
                # The layer's tensors are constants of a graph: keep the first ones.
                for there, here in zip(static.args, fresh.args, strict=True):
                    there.copy_(here)
                call = replace(fresh, obj=static.obj, args=tuple(arg.clone() for arg in static.args))
                eager = run(target, copied(call)[0], dtype)
                graph.replay()
                device.synchronize()
                compare(target.spec, dtype, call, results, worst, want=eager)
    if not worst.calls:
        raise NotApplicable("its declared limits refuse every call of a model's size")
    return worst.as_figures()


def _call(target: Target, sample: Sample) -> Results:
    # Not calls.run, which waits for the device.
    return as_results(target.impl.fn(sample.obj, *sample.args, **sample.kwargs))


def _capture(device: Any, kind: Any, call: Callable[[], Results]) -> tuple[Any, Results]:
    """The graph of one call after two for warming up, and the tensors that its replays fill."""
    stream = device.Stream()
    stream.wait_stream(device.current_stream())
    with device.stream(stream):
        for _ in range(2):
            call()
    device.current_stream().wait_stream(stream)
    graph = kind()
    with device.graph(graph):
        results = call()
    return graph, results
