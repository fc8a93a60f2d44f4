# SPDX-License-Identifier: Apache-2.0
"""The references are bit-equal to the native forward of SGLang's layers."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from comparing import DTYPES, SPECS, call, samples_of

from fl_dispatch.ops.spec import Sample

pytest.importorskip("sglang", reason="compares with SGLang, which is not installed in this environment")

from sglang.srt.layers.activation import GeluAndMul, SiluAndMul
from sglang.srt.layers.layernorm import GemmaRMSNorm, RMSNorm
from sglang.srt.layers.rotary_embedding.base import RotaryEmbedding
from sglang.srt.layers.rotary_embedding.utils import apply_rotary_emb

pytestmark = pytest.mark.sglang
every_dtype = pytest.mark.parametrize("dtype_name", DTYPES)


def assert_bit_equal(name: str, sample: Sample, native: Any) -> None:
    ours = call(SPECS[name].reference, sample)
    theirs = native if isinstance(native, tuple) else (native,)
    assert [t.dtype for t in ours] == [t.dtype for t in theirs], sample.label
    assert all(map(torch.equal, ours, theirs)), sample.label


@every_dtype
def test_silu_and_mul(dtype_name: str) -> None:
    for sample in samples_of("silu_and_mul", dtype_name):
        assert_bit_equal("silu_and_mul", sample, SiluAndMul().forward_native(*sample.args))


@every_dtype
@pytest.mark.parametrize(("name", "approximate"), [("gelu_and_mul", "none"), ("gelu_tanh_and_mul", "tanh")])
def test_gelu_and_mul(name: str, approximate: str, dtype_name: str) -> None:
    for sample in samples_of(name, dtype_name):
        assert_bit_equal(name, sample, GeluAndMul(approximate).forward_native(*sample.args))


def rms_norm_layer(obj: Any) -> RMSNorm:
    layer = RMSNorm(len(obj.weight), obj.variance_epsilon, cast_x_before_out_mul=obj.cast_x_before_out_mul)
    layer.weight = torch.nn.Parameter(obj.weight, requires_grad=False)
    return layer


@every_dtype
@pytest.mark.parametrize("cast_first", [False, True])
def test_rms_norm(cast_first: bool, dtype_name: str) -> None:
    compared = 0
    for sample in samples_of("rms_norm", dtype_name):
        if hasattr(sample.obj, "cast_x_to_weight_dtype") or sample.obj.cast_x_before_out_mul != cast_first:
            continue
        # SGLang copies what is not contiguous before anything else. Where that changes the order of the elements in
        # memory it changes the order of the sum; the copy is theirs, so both get it.
        args = tuple(tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in sample.args)
        sample = Sample(sample.label, sample.obj, args)
        assert_bit_equal("rms_norm", sample, rms_norm_layer(sample.obj).forward_native(*args))
        compared += 1
    assert compared >= 36


@pytest.mark.parametrize("cast_first", [False, True])
@pytest.mark.parametrize("residual_dtype", DTYPES.values())
@pytest.mark.parametrize("weight_dtype", DTYPES.values())
@pytest.mark.parametrize("dtype", DTYPES.values())
def test_rms_norm_of_mixed_dtypes(
    dtype: torch.dtype, weight_dtype: torch.dtype, residual_dtype: torch.dtype, cast_first: bool
) -> None:
    weight = torch.randn(96).to(weight_dtype)
    obj = SimpleNamespace(weight=weight, variance_epsilon=1e-5, cast_x_before_out_mul=cast_first)
    sample = Sample("mixed", obj, (torch.randn(7, 96).to(dtype), torch.randn(7, 96).to(residual_dtype)))
    assert_bit_equal("rms_norm", sample, rms_norm_layer(obj).forward_native(*sample.args))


def test_rms_norm_takes_an_sglang_layer_as_it_is() -> None:
    layer = RMSNorm(64, weight_dtype=torch.bfloat16)
    sample = Sample("layer", layer, (torch.randn(5, 64).bfloat16(), torch.randn(5, 64).bfloat16()))
    assert_bit_equal("rms_norm", sample, layer.forward_native(*sample.args))


def gemma_layer(obj: Any) -> GemmaRMSNorm:
    layer = GemmaRMSNorm(len(obj.weight), obj.variance_epsilon)
    layer.weight = torch.nn.Parameter(obj.weight, requires_grad=False)
    return layer


@every_dtype
def test_gemma_rms_norm(dtype_name: str) -> None:
    compared = 0
    for sample in samples_of("gemma_rms_norm", dtype_name):
        if sample.obj.round_sum_before_norm:
            assert_bit_equal("gemma_rms_norm", sample, gemma_layer(sample.obj).forward_native(*sample.args))
            compared += 1
    assert compared >= 36


@pytest.mark.parametrize("residual_dtype", DTYPES.values())
@pytest.mark.parametrize("weight_dtype", DTYPES.values())
@pytest.mark.parametrize("dtype", DTYPES.values())
def test_gemma_rms_norm_of_mixed_dtypes(
    dtype: torch.dtype, weight_dtype: torch.dtype, residual_dtype: torch.dtype
) -> None:
    obj = SimpleNamespace(weight=torch.randn(96).to(weight_dtype), variance_epsilon=1e-5)
    sample = Sample("mixed", obj, (torch.randn(7, 96).to(dtype), torch.randn(7, 96).to(residual_dtype)))
    assert_bit_equal("gemma_rms_norm", sample, gemma_layer(obj).forward_native(*sample.args))


@every_dtype
def test_rotary_embedding(dtype_name: str) -> None:
    compared = 0
    for sample in samples_of("rotary_embedding", dtype_name):
        query, key, _, _, position_ids = sample.args
        if not len(query):
            continue  # SGLang's view(0, -1, head_size) is an error
        # The layer's own __init__ wants a device that it knows; forward_native needs only this of it.
        layer = SimpleNamespace(**vars(sample.obj), _apply_rotary_emb_wrapped=apply_rotary_emb)
        assert_bit_equal("rotary_embedding", sample, RotaryEmbedding.forward_native(layer, position_ids, query, key))
        compared += 1
    assert compared >= 40
