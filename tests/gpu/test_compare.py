# SPDX-License-Identifier: Apache-2.0
"""Comparing with float64 while a device serves: inputs come back from it, and a capture is left alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from calls import IMPLS, REGISTRY, judged, model_calls, target

from fl_dispatch import OpManager
from fl_dispatch.testing.calls import as_results, copied
from fl_dispatch.testing.judge import Worst, compare
from fl_dispatch.testing.managers import manager_for


def comparing(op: str, impl_id: str) -> OpManager:
    manager = manager_for(target(op, impl_id), strict=True)
    manager.watch(numbers=True)
    return manager


def only_row(manager: OpManager) -> dict[str, Any]:
    assert manager.comparison is not None
    (row,) = manager.comparison.as_rows()
    return row


@pytest.mark.parametrize(("op", "impl_id"), IMPLS)
def test_calls_on_the_device_are_judged_and_right(op: str, impl_id: str) -> None:
    manager = comparing(op, impl_id)
    samples = model_calls(op, "bfloat16", 16)
    for sample in samples:
        judged(manager, op, "bfloat16", sample)
    row = only_row(manager)
    assert (row["calls"], row["wrong_calls"], row["not_judged"]) == (len(samples), 0, {}), row
    assert 0 < row["worst_error_of_tolerance"] < 1
    assert "@cuda" in row["worst_call"]


def test_a_wrong_result_of_the_device_is_found() -> None:
    op = "silu_and_mul"
    right = target(op, "vendor.cuda")

    def wrong(obj: Any, x: Any) -> Any:
        result = right.impl.fn(obj, x)
        result[3, 5] += 1
        return result

    manager = manager_for(right, dataclasses.replace(right.impl, fn=wrong), strict=True)
    manager.watch(numbers=True)
    given, _ = copied(model_calls(op, "bfloat16", 16)[0])
    manager.call_op(op, given.obj, *given.args)
    row = only_row(manager)
    assert row["wrong_calls"] == 1
    assert "element [3, 5]" in row["first_wrong"]


def test_a_capture_is_left_alone() -> None:
    op = "rms_norm"
    manager = comparing(op, "vendor.cuda")
    sample = model_calls(op, "bfloat16", 16)[0]
    judged(manager, op, "bfloat16", sample)
    static, _ = copied(sample)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = as_results(manager.call_op(op, static.obj, *static.args, **static.kwargs))
    graph.replay()
    torch.cuda.synchronize()
    compare(REGISTRY.spec(op), "bfloat16", sample, results, Worst())
    assert only_row(manager)["calls"] == 1
