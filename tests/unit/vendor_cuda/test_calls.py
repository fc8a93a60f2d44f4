# SPDX-License-Identifier: Apache-2.0
"""The calls of sgl_kernel: argument order, in-place semantics, cast copies. The stand-in answers on the CPU."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fl_dispatch import ops
from fl_vendor_cuda.cast_copies import CastCopies

sys.path.insert(0, str(Path(__file__).parents[1] / "ops"))
from fl_dispatch.testing.exact import exact

HALF = torch.bfloat16


def within(op, obj, args, got, kwargs=None):
    tolerance = ops.load_spec(op).tolerances["bfloat16"]
    got = got if isinstance(got, tuple) else (got,)
    for one, want in zip(got, exact(op, obj, *args, **(kwargs or {})), strict=True):
        assert one.shape == want.shape
        assert ((one.double() - want).abs() <= tolerance.atol + tolerance.rtol * want.abs()).all()


@pytest.mark.parametrize("op", ["silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul"])
def test_a_gated_activation_gets_x_alone_and_leaves_it(impls, sgl_kernel, op):
    x = torch.randn(2, 3, 64, dtype=HALF)
    before = x.clone()
    within(op, None, (before,), impls[op].fn(SimpleNamespace(), x))
    ((name, given),) = sgl_kernel.calls
    assert name == op
    assert given is x
    assert torch.equal(x, before)


@pytest.mark.parametrize("op", ["rms_norm", "gemma_rms_norm"])
@pytest.mark.parametrize("shape", [(5, 32), (2, 3, 32)])
def test_the_plain_norm_does_not_write_to_x(impls, sgl_kernel, op, shape):
    obj = SimpleNamespace(weight=torch.randn(32, dtype=HALF), variance_epsilon=1e-5)
    x = torch.randn(shape, dtype=HALF)
    before = x.clone()
    within(op, obj, (before,), impls[op].fn(obj, x))
    assert torch.equal(x, before)
    assert sgl_kernel.calls[0][-1] == 1e-5


@pytest.mark.parametrize("op", ["rms_norm", "gemma_rms_norm"])
@pytest.mark.parametrize("shape", [(5, 32), (2, 3, 32)])
def test_the_fused_norm_returns_what_it_overwrote(impls, sgl_kernel, op, shape):
    obj = SimpleNamespace(weight=torch.randn(32, dtype=HALF), variance_epsilon=1e-5)
    x, residual = torch.randn(shape, dtype=HALF), torch.randn(shape, dtype=HALF)
    before = x.clone(), residual.clone()
    got = impls[op].fn(obj, x, residual)
    assert got[0] is x
    assert got[1] is residual
    within(op, obj, before, got)


def rotary_call(cache_dtype=HALF, head_size=64, rotary_dim=64, interleaved=False):
    angles = torch.outer(torch.arange(32.0), 100.0 ** -(torch.arange(0.0, rotary_dim, 2) / rotary_dim))
    cache = torch.cat((angles.cos(), angles.sin()), dim=-1).to(cache_dtype)
    packed = torch.randn(7, 6, head_size, dtype=HALF).clamp(-4, 4)
    obj = SimpleNamespace(cos_sin_cache=cache, is_neox_style=not interleaved)
    args = (packed[:, :4], packed[:, 4:], *cache.chunk(2, dim=-1), torch.randint(0, 32, (7,)))
    return obj, args, {"rotary_interleaved": interleaved}


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [64, 32])
@pytest.mark.parametrize("cache_dtype", [HALF, torch.float32])
def test_rotary_turns_query_and_key_in_place(impls, sgl_kernel, cache_dtype, rotary_dim, interleaved):
    obj, args, kwargs = rotary_call(cache_dtype, rotary_dim=rotary_dim, interleaved=interleaved)
    before = tuple(arg.clone() for arg in args)
    got = impls["rotary_embedding"].fn(obj, *args, **kwargs)
    assert got[0] is args[0]
    assert got[1] is args[1]
    within("rotary_embedding", obj, before, got, kwargs)


def test_rotary_out_of_place_leaves_query_and_key(impls, sgl_kernel):
    obj, args, kwargs = rotary_call()
    before = args[0].clone(), args[1].clone()
    got = impls["rotary_embedding"].fn(obj, *args, **kwargs, inplace=False)
    assert torch.equal(args[0], before[0])
    assert torch.equal(args[1], before[1])
    within("rotary_embedding", obj, args, got, kwargs)


def test_a_cache_of_the_right_dtype_goes_to_the_kernel_itself(impls, sgl_kernel):
    obj, args, kwargs = rotary_call()
    impls["rotary_embedding"].fn(obj, *args, **kwargs)
    assert sgl_kernel.calls[0][5] is obj.cos_sin_cache


def test_another_dtype_is_cast_once_and_again_only_for_another_cache(impls, sgl_kernel):
    obj, args, kwargs = rotary_call(torch.float32)
    for _ in range(3):
        impls["rotary_embedding"].fn(obj, *args, **kwargs)
    obj.cos_sin_cache = obj.cos_sin_cache.clone()
    impls["rotary_embedding"].fn(obj, *args, **kwargs)
    caches = [call[5] for call in sgl_kernel.calls]
    assert caches[0] is caches[1] is caches[2]
    assert caches[3] is not caches[0]


def test_a_cast_copy_goes_with_its_original_and_there_is_one_at_most():
    copies = CastCopies()
    cache, other = torch.ones(4, 8), torch.ones(4, 8)
    first = copies.get(cache, HALF)
    assert copies.get(cache, HALF) is first
    assert copies.get(cache, torch.float16).dtype == torch.float16
    copies.get(other, HALF)
    assert len(copies) == 2
    del cache, other
    gc.collect()
    assert len(copies) == 0


def test_the_module_is_looked_up_once(impls, sgl_kernel, monkeypatch):
    x = torch.randn(1, 64, dtype=HALF)
    impls["silu_and_mul"].fn(SimpleNamespace(), x)
    monkeypatch.delitem(sys.modules, "sgl_kernel")
    impls["silu_and_mul"].fn(SimpleNamespace(), x)
    impls["rms_norm"].fn(SimpleNamespace(weight=torch.ones(64, dtype=HALF), variance_epsilon=0.0), x)
    assert len(sgl_kernel.calls) == 3
