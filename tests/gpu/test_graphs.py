# SPDX-License-Identifier: Apache-2.0
"""A graph that was captured and not replayed has computed nothing: what it would fill must not be used outside of it."""

from __future__ import annotations

import torch
from calls import REGISTRY, judged, model_calls, target

from fl_dispatch.testing.calls import as_results, copied
from fl_dispatch.testing.judge import Worst, compare
from fl_dispatch.testing.managers import manager_for


def test_a_cast_copy_made_inside_of_a_capture_is_not_used_outside_of_it() -> None:
    op, dtype = "rotary_embedding", "bfloat16"
    manager = manager_for(target(op, "vendor.cuda"), strict=True)
    sample = next(call for call in model_calls(op, dtype, 16) if "float32 cache" in call.label)
    warm = next(call for call in model_calls(op, dtype, 16, seed=6) if "float32 cache" in call.label)
    judged(manager, op, dtype, warm)  # another cache: the kernel is loaded, this cache not yet cast
    static, _ = copied(sample)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = as_results(manager.call_op(op, static.obj, *static.args, **static.kwargs))
    # The same cache as the graph's, and another query and key. What the graph would cast into holds nothing yet.
    fresh, _ = copied(sample)
    fresh.obj.cos_sin_cache = static.obj.cos_sin_cache
    compare(
        REGISTRY.spec(op),
        dtype,
        sample,
        as_results(manager.call_op(op, fresh.obj, *fresh.args, **fresh.kwargs)),
        Worst(),
    )
    graph.replay()
    torch.cuda.synchronize()
    compare(REGISTRY.spec(op), dtype, sample, results, Worst())
