# SPDX-License-Identifier: Apache-2.0
"""``measure``: every implementation of some operators, over dtypes and numbers of tokens, all of them taking turns."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from fl_dispatch.errors import FLDispatchError
from fl_dispatch.native import IMPL_ID, FrameworkLayer
from fl_dispatch.registry import OpRegistry
from fl_dispatch.tune import timing
from fl_dispatch.tune.calls import Layers, bound_calls, build_layers, layer_calls
from fl_dispatch.tune.workloads import WORKLOADS, ModelShape, Workload

#: Replayed inputs together are at least so large, or there are this many sets of them.
_SPREAD_BYTES = 200e6
_MAX_SETS = 32


@dataclass(frozen=True)
class Figure:
    """One implementation on one workload. Times are medians of the rounds, in microseconds a call.

    Args:
        host_us: what a call keeps the host busy, among others.
        device_us: what it takes on the device in a graph; None where that cannot be measured.
        host_spread_us, device_spread_us: half of the range in which the middle half of the rounds lies.
        failed: why there are no times.
        fused: of the framework's own method, as ``FrameworkLayer`` has it.
    """

    workload: str
    op_name: str
    dtype: str
    tokens: int
    impl_id: str
    floor_us: float
    host_us: float | None = None
    device_us: float | None = None
    host_spread_us: float = 0.0
    device_spread_us: float = 0.0
    failed: str | None = None
    fused: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For the policy file: rounded, without what is empty."""
        plain = {key: round(value, 2) if isinstance(value, float) else value for key, value in asdict(self).items()}
        return {
            key: value
            for key, value in plain.items()
            if not (value is None or value is False or (key.endswith("_spread_us") and value == 0.0))
        }


def measure(
    registry: OpRegistry,
    *,
    operators: Sequence[str],
    dtypes: Sequence[str],
    tokens: Sequence[int],
    shape: ModelShape,
    device: str,
    bandwidth: float,
    rounds: int = 7,
    progress: Callable[[str], None] = lambda text: None,
    layers: Layers | None = None,
) -> list[Figure]:
    """Measure; what cannot be measured has its reason in place of times.

    Args:
        registry: whose implementations.
        operators, dtypes, tokens: what to measure.
        shape: sizes of the model.
        device: device type.
        bandwidth: bytes a second, for the floor.
        rounds: times are medians of so many.
        progress: gets a line for each step.
        layers: gives a framework's layer. Then its own method is measured too, and all of them as the framework calls its layer.
    """
    workloads = [workload for workload in WORKLOADS if workload.op_name in operators]
    steps = [(workload, dtype, count) for workload in workloads for dtype in dtypes for count in tokens]
    figures: list[Figure] = []
    built: dict[tuple[str, str], list[FrameworkLayer] | Exception] = {}
    with torch.inference_mode():
        for number, (workload, dtype, count) in enumerate(steps, 1):
            moved = workload.bytes_moved(shape, count, getattr(torch, dtype).itemsize)
            floor = moved / bandwidth * 1e6
            if layers is not None and (workload.op_name, dtype) not in built:
                built[workload.op_name, dtype] = build_layers(layers, workload.op_name, dtype, shape, device)
            own = built.get((workload.op_name, dtype))
            found = list(_step(registry, workload, dtype, count, shape, device, moved, floor, rounds, own))
            figures += found
            shown = ", ".join(f"{one.impl_id} {_shown(one)}" for one in found)
            progress(f"[{number}/{len(steps)}] {workload.name}, {dtype}, {count} tokens: {shown or 'nothing is able'}")
    return figures


def _step(
    registry: OpRegistry,
    workload: Workload,
    dtype: str,
    tokens: int,
    shape: ModelShape,
    device: str,
    moved: int,
    floor: float,
    rounds: int,
    layers: list[FrameworkLayer] | Exception | None,
) -> Iterator[Figure]:
    sets = max(1, min(_MAX_SETS, round(_SPREAD_BYTES / moved))) if timing.has_graphs(device) else 1
    blank = functools.partial(Figure, workload.name, workload.op_name, dtype, tokens, floor_us=floor)
    try:
        samples = [workload.sample(shape, tokens, getattr(torch, dtype), device) for _ in range(sets)]
    except RuntimeError as error:  # memory for so many tokens: what was measured before must not be lost with it
        for impl in registry.get(workload.op_name):
            yield blank(impl.impl_id, failed=f"no inputs: {_reason(error, impl.impl_id)}")
        return
    if isinstance(layers, Exception):
        yield blank(IMPL_ID, failed=_reason(layers, IMPL_ID))
        layers = None
    running: dict[str, tuple[list[timing.Call], int, timing.Replayed | None]] = {}
    makers = {
        impl.impl_id: functools.partial(bound_calls, registry, impl, samples, device, dtype, layers)
        for impl in sorted(registry.get(workload.op_name), key=lambda impl: impl.impl_id)
    }
    if layers is not None:
        makers[IMPL_ID] = functools.partial(layer_calls, layers, samples, [layer.method for layer in layers])
    for name, make in makers.items():
        try:
            calls = make()
            for call in (*calls, calls[0], calls[0]):
                call()  # a kernel is compiled, tuned and loaded by its first calls
            replayed = timing.Replayed(calls) if timing.has_graphs(device) else None
            running[name] = (calls, timing.calls_a_round(calls[0], device), replayed)
        except Exception as error:  # noqa: BLE001  (a benchmark of whatever is installed: the error is its result)
            yield blank(name, failed=_reason(error, name))
    between = timing.Between(device)
    host: dict[str, list[float]] = {name: [] for name in running}
    on_device: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(rounds):
        for name, (calls, count, replayed) in list(running.items()):
            try:
                host[name].append(timing.host_us_among_others(calls, count, between))
                if replayed is not None:
                    on_device[name].append(replayed.device_us())
            except Exception as error:  # noqa: BLE001  (likewise; what the others took is kept)
                del running[name]
                yield blank(name, failed=_reason(error, name))
    for name in running:
        times = on_device[name]
        yield blank(
            name,
            host_us=statistics.median(host[name]),
            device_us=statistics.median(times) if times else None,
            host_spread_us=_spread(host[name]),
            device_spread_us=_spread(times),
            fused=name == IMPL_ID and layers is not None and layers[0].fused,
        )


def _reason(error: Exception, impl_id: str) -> str:
    """One line: of a refusal the line about the implementation itself."""
    lines = str(error).splitlines() or [""]
    if isinstance(error, FLDispatchError):
        refused = [words[2:] for line in lines if (words := line.split())[:2] == ["x", impl_id]]
        return " ".join(refused[0]) if refused else lines[0]
    return f"{type(error).__name__}: {lines[0]}"


def _spread(times: Sequence[float]) -> float:
    if len(times) < 4:
        return (max(times) - min(times)) / 2 if times else 0.0
    quarters = statistics.quantiles(times, n=4)
    return (quarters[2] - quarters[0]) / 2


def _shown(figure: Figure) -> str:
    if figure.failed is not None or figure.host_us is None:
        return "not able"
    if figure.device_us is None:
        return f"{figure.host_us:.1f} us"
    return f"{figure.device_us:.1f} us ({figure.host_us:.1f} on the host)"
