# SPDX-License-Identifier: Apache-2.0
"""Capture into a CUDA graph and replay with other inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from calls import IMPLS, copied, implementation, manager_for, run, sized_samples, worst


def capture(call: Callable[[], Any], warm_up: bool = True) -> tuple[torch.cuda.CUDAGraph, Any]:
    """The graph of one call, and the tensors its replays fill."""
    if warm_up:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                call()
        torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()
    return graph, results


@pytest.mark.parametrize("tokens", [1, 16, 256])
@pytest.mark.parametrize(("op", "impl_id"), IMPLS)
def test_a_replay_computes_from_the_inputs_it_finds(op: str, impl_id: str, tokens: int) -> None:
    impl = implementation(op, impl_id)
    assert impl.capture_safe
    manager = manager_for(impl)
    for index, sample in enumerate(sized_samples(op, "bfloat16", tokens, 21)):
        static = copied(sample)
        graph, results = capture(functools.partial(run, functools.partial(manager.call_op, op), static))
        for seed in (22, 23):
            fresh = list(sized_samples(op, "bfloat16", tokens, seed))[index]
            # Of the layer only its tensors' values may change, and they are constants: keep the first ones.
            fresh = replace(fresh, obj=sample.obj)
            for there, here in zip(static.args, fresh.args, strict=True):
                there.copy_(here)
            graph.replay()
            fraction = worst(op, "bfloat16", fresh, results)
            assert fraction <= 1.0, f"{fraction:.3g} of the tolerance at {sample.label!r}, seed {seed}"


def test_a_cast_copy_made_inside_of_a_capture_is_not_used_outside_of_it() -> None:
    impl = implementation("rotary_embedding", "vendor.cuda")
    sample = next(s for s in sized_samples("rotary_embedding", "bfloat16", 16, 31) if "float32 cache" in s.label)
    manager = manager_for(impl)
    call = functools.partial(run, functools.partial(manager.call_op, "rotary_embedding"))
    warm = next(s for s in sized_samples("rotary_embedding", "bfloat16", 16, 32) if "float32 cache" in s.label)
    call(copied(warm))  # another cache: the kernel is loaded, this cache not yet cast
    static = copied(sample)
    graph, results = capture(functools.partial(call, static), warm_up=False)
    # The graph was never replayed, so what it would cast into holds nothing.
    assert worst("rotary_embedding", "bfloat16", sample, call(copied(sample))) <= 1.0
    graph.replay()
    assert worst("rotary_embedding", "bfloat16", sample, results) <= 1.0
