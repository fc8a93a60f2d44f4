# SPDX-License-Identifier: Apache-2.0
"""What an adapter offers ``fl-dispatch tune``, against the references."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from fl_dispatch import FrameworkLayer, OpManager, OpRegistry, SelectionPolicy
from fl_dispatch.tune.workloads import ModelShape, Workload

SHAPE = ModelShape(hidden=64, intermediate=64, heads=2, kv_heads=1, head_size=64)


def check(framework_layer: Callable[..., FrameworkLayer], workload: Workload, bound: bool) -> None:
    """That a layer computes what the reference does: by its own method, or ``bound`` to the reference and by its site."""
    offered = framework_layer(workload.op_name, vars(SHAPE), torch.float32, "cpu")
    layer, method = offered.layer, offered.method
    sample = workload.sample(SHAPE, 5, torch.float32, "cpu")
    obj = sample.obj
    if "norm" in workload.op_name:
        obj = SimpleNamespace(weight=layer.weight.data, variance_epsilon=layer.variance_epsilon)
    calls: list[Any] = []
    if bound:
        manager = OpManager(policy=SelectionPolicy(prefer=("reference",), strict=True), device_type="cpu")
        site = manager.bind(workload.op_name, layer, label="test")
        method = offered.forward(site)
        implementation = site.fn
        site.fn = lambda *args: calls.append(args) or implementation(*args)
    wanted = OpRegistry().spec(workload.op_name).reference(obj, *map(_copy, sample.args))
    with torch.no_grad():
        found = method(layer, *offered.arguments(*map(_copy, sample.args)))
    assert len(calls) == bound
    for right, result in zip(*(out if isinstance(out, tuple) else (out,) for out in (wanted, found)), strict=True):
        torch.testing.assert_close(result.view(right.shape), right)


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
