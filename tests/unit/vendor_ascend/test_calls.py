# SPDX-License-Identifier: Apache-2.0
"""Every call of torch_npu: against its schemas, documented limits and meta results, and by numbers against float64."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from calls_checked import DTYPES, accepted, check_all, several

from fl_dispatch import OpManager, OpRegistry, SelectionPolicy, compiled_call
from fl_dispatch.backends import reference
from fl_vendor_ascend import rotary
from fl_vendor_ascend.operators import _DECLARED

HALF = torch.bfloat16


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", sorted(_DECLARED))
def test_every_sample_inside_the_limits_is_called_right(impls, npu, op, dtype):
    assert check_all(impls[op], dtype) >= 8


@pytest.mark.parametrize("op", sorted(_DECLARED))
def test_the_samples_reach_every_function_that_the_operator_declares(impls, npu, op):
    functions, _ = _DECLARED[op]
    for sample in accepted(impls[op], HALF):
        impls[op].fn(sample.obj, *sample.args, **sample.kwargs)
    assert {name for name, _, _ in npu.CALLS} == set(functions)


@pytest.mark.parametrize(
    ("head_size", "rotary_dim", "interleaved", "cache", "dtype", "operator"),
    [
        (128, 128, False, HALF, HALF, rotary.MROPE),
        (128, 64, True, HALF, HALF, rotary.MROPE),
        (96, 96, False, HALF, HALF, rotary.MROPE),
        (80, 80, False, HALF, HALF, rotary.ROTARY_MUL),
        (128, 48, False, HALF, HALF, rotary.ROTARY_MUL),
        (80, 80, False, torch.float32, torch.float32, rotary.MROPE),
        (128, 48, True, torch.float32, torch.float32, rotary.MROPE),
        (128, 128, False, torch.float32, HALF, rotary.APPLY),
        (64, 64, False, None, HALF, rotary.APPLY),
        (64, 64, True, None, HALF, rotary.ROTARY_MUL),
        (128, 64, False, None, HALF, rotary.ROTARY_MUL),
        (96, 96, False, None, HALF, rotary.ROTARY_MUL),
    ],
)
def test_the_rotary_operator_is_chosen_by_shape_style_and_cache(
    head_size, rotary_dim, interleaved, cache, dtype, operator
):
    obj = SimpleNamespace(cos_sin_cache=None if cache is None else torch.zeros(9, rotary_dim, dtype=cache))
    query, cos = torch.zeros(3, 2, head_size, dtype=dtype), torch.zeros(9, rotary_dim // 2)
    assert rotary.route(obj, query, cos, torch.arange(3), interleaved) == operator
    if operator == rotary.MROPE:
        assert rotary.route(obj, query, cos, torch.arange(3).int(), interleaved) != operator


def test_mrope_gets_views_of_query_and_key_and_the_cache_itself(impls, npu):
    packed = torch.randn(5, 6, 64, dtype=HALF)
    cache = torch.randn(9, 64, dtype=HALF)
    obj = SimpleNamespace(cos_sin_cache=cache)
    impls["rotary_embedding"].fn(obj, packed[:, :4], packed[:, 4:], *cache.chunk(2, -1), torch.arange(5))
    ((_, (_, query, key, given, head_size), kwargs),) = npu.CALLS
    assert (query.shape, key.shape, head_size) == ((5, 256), (5, 128), 64)
    assert query.data_ptr() == packed.data_ptr()
    assert key.data_ptr() == packed[:, 4:].data_ptr()
    assert given is cache
    assert kwargs == {"mrope_section": [0, 0, 0]}  # half is the default, which the dispatcher leaves out


def test_a_call_outside_the_limits_goes_to_the_next_implementation(impls, npu):
    registry = OpRegistry()
    reference.register(registry)
    # As if this were the device.
    ascend = dataclasses.replace(impls["silu_and_mul"], devices=None, available=None)
    registry.register(ascend)
    manager = OpManager(registry, SelectionPolicy(prefer=("vendor",)), device_type="cpu")
    assert manager.call_op("silu_and_mul", None, torch.randn(3, 64)).shape == (3, 32)
    assert len(npu.CALLS) == 1
    assert manager.call_op("silu_and_mul", None, torch.randn(64, 3).t()[:, :32]).shape == (3, 16)
    assert len(npu.CALLS) == 1


@pytest.mark.parametrize("op", sorted(_DECLARED))
def test_compiled_code_gets_it_as_an_opaque_operator(impls, npu, op):
    registry = OpRegistry()
    registry.register(dataclasses.replace(impls[op], devices=None, available=None))
    manager = OpManager(registry, SelectionPolicy(prefer=("vendor",)), device_type="cpu")
    sample = next(s for s in accepted(impls[op], HALF) if s.args[0].dim() == (3 if op == "rotary_embedding" else 2))
    call = compiled_call(manager.bind(op, sample.obj))
    args, kwargs = sample.args, {**sample.kwargs}
    compiled = torch.compile(lambda *a: call(sample.obj, *a, **kwargs), backend="aot_eager", fullgraph=True)
    got, wanted = compiled(*args), impls[op].fn(sample.obj, *args, **kwargs)
    for one, want in zip(several(got), several(wanted), strict=True):
        assert torch.equal(one, want)
    torch._dynamo.reset()
