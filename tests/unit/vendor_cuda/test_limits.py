# SPDX-License-Identifier: Apache-2.0
"""The declared limits: what passes, and the reason for everything that does not."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from fl_dispatch import OpManager, OpRegistry, SelectionPolicy
from fl_dispatch.backends import reference
from fl_dispatch.limits import layer_verdict
from fl_vendor_cuda import limits

HALF = torch.bfloat16


def x(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("tensor", "word"),
    [
        (x(3, 16), None),
        (x(2, 3, 32), None),
        (x(3, 8, dtype=torch.float32), None),
        (x(3, 24), "halves of a multiple of 16 bytes, x has 12 elements of 2 bytes a half"),
        (x(3, 4, dtype=torch.float32), "halves of a multiple of 16 bytes"),
        (x(3, 64)[:, :32], "contiguous tensors, x has strides [64, 1] for [3, 32]"),
        (x(32, 3).t(), "contiguous"),
        (x(0, 32), "at least one element"),
        (x(3 * 32 + 1)[1:].view(3, 32), "begin at a multiple of 16 bytes"),
    ],
)
def test_gated_rows(tensor, word):
    verdict = limits.gated_rows(None, tensor)
    assert verdict is True if word is None else word in verdict


def layer(hidden: int = 32, dtype: torch.dtype = HALF, **fields) -> SimpleNamespace:
    return SimpleNamespace(weight=torch.ones(hidden, dtype=dtype), variance_epsilon=1e-6, **fields)


@pytest.mark.parametrize(
    ("args", "word"),
    [
        ((x(3, 32),), None),
        ((x(2, 3, 32),), None),
        ((x(3, 32), x(3, 32)), None),
        ((x(3, 32, dtype=torch.float16),), "x is torch.float16 and obj.weight torch.bfloat16"),
        ((x(3, 32), x(3, 32, dtype=torch.float32)), "residual torch.float32"),
        ((x(3, 40)[:, :32],), "x has strides"),
        ((x(3, 32), x(3, 40)[:, :32]), "residual has strides"),
        ((x(0, 32),), "at least one element"),
        ((x(97)[1:].view(3, 32),), "x does not"),
        ((x(3, 32), x(97)[1:].view(3, 32)), "residual does not"),
    ],
)
def test_norm_rows(args, word):
    verdict = limits.norm_rows(layer(), *args)
    assert verdict is True if word is None else word in verdict


@pytest.mark.parametrize(
    ("obj", "word"),
    [
        (layer(), None),
        (layer(dtype=torch.float16), None),
        (layer(limits.MAX_HIDDEN), None),
        (layer(dtype=torch.float32), "float16 or bfloat16 weight"),
        (layer(limits.MAX_HIDDEN + 8), "hidden sizes up to 24576"),
        (SimpleNamespace(weight=torch.ones(64, dtype=HALF)[::2]), "contiguous weight"),
        (SimpleNamespace(weight=torch.ones(33, dtype=HALF)[1:]), "begins at a multiple of 16 bytes"),
    ],
)
def test_norm_layer(obj, word):
    verdict = limits.norm_layer(obj)
    assert verdict is True if word is None else word in verdict


def test_a_norm_that_casts_before_the_weight_is_refused_and_gemma_has_no_such_field(impls):
    obj = layer(cast_x_before_out_mul=True)
    assert "honours cast_x_before_out_mul only as False" in layer_verdict(impls["rms_norm"], obj, {})
    assert layer_verdict(impls["gemma_rms_norm"], obj, {}) is None


@pytest.mark.parametrize(
    ("obj", "word"),
    [
        (SimpleNamespace(cos_sin_cache=x(9, 64)), None),
        (SimpleNamespace(), "needs obj.cos_sin_cache"),
        (SimpleNamespace(cos_sin_cache=None), "needs obj.cos_sin_cache"),
        (SimpleNamespace(cos_sin_cache=x(9, 128)[:, :64]), "contiguous obj.cos_sin_cache"),
    ],
)
def test_rotary_layer(obj, word):
    verdict = limits.rotary_layer(obj)
    assert verdict is True if word is None else word in verdict


PACKED = x(5, 6, 64)


@pytest.mark.parametrize(
    ("query", "key", "positions", "word"),
    [
        (x(5, 4, 64), x(5, 2, 64), torch.arange(5), None),
        (PACKED[:, :4], PACKED[:, 4:], torch.arange(5), None),
        (x(5, 4, 64), x(5, 2, 64), torch.arange(5).int(), "int64 positions, not torch.int32"),
        (x(5, 4, 64), x(5, 2, 64), torch.arange(10)[::2], "contiguous positions"),
        (x(0, 4, 64), x(0, 2, 64), torch.arange(0), "at least one token"),
        (x(5, 4, 72)[..., :64], x(5, 2, 64), torch.arange(5), "heads that follow each other"),
        (x(5, 4, 64), x(5, 2, 72)[..., :64], torch.arange(5), "heads that follow each other"),
        (x(4, 5, 64).transpose(0, 1), x(5, 2, 64), torch.arange(5), "heads that follow each other"),
    ],
)
def test_packed_heads(query, key, positions, word):
    verdict = limits.packed_heads(None, query, key, x(9, 32), x(9, 32), positions)
    assert verdict is True if word is None else word in verdict


def test_a_refused_call_is_served_by_the_next_without_reaching_the_kernel(impls, sgl_kernel):
    registry = OpRegistry()
    reference.register(registry)
    # As if this were the GPU.
    registry.register(dataclasses.replace(impls["silu_and_mul"], devices=None, min_arch=None))
    manager = OpManager(registry, SelectionPolicy(prefer=("vendor",)), device_type="cpu")
    assert manager.call_op("silu_and_mul", None, x(3, 64)).shape == (3, 32)
    assert len(sgl_kernel.calls) == 1
    assert manager.call_op("silu_and_mul", None, x(3, 24)).shape == (3, 12)
    assert len(sgl_kernel.calls) == 1


@pytest.mark.parametrize("op", ["silu_and_mul", "rms_norm"])
def test_predicates_trace_into_one_graph(op):
    predicate = {"silu_and_mul": limits.gated_rows, "rms_norm": limits.norm_rows}[op]
    obj = layer()

    def call(tensor):
        return tensor + 1 if predicate(obj, tensor) is True else tensor

    compiled = torch.compile(call, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x(3, 32)), x(3, 32) + 1)
    torch._dynamo.reset()
