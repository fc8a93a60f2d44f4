# SPDX-License-Identifier: Apache-2.0
"""The references are bit-equal to the native forward of vLLM's layers."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from comparing import DTYPES, SPECS, call, samples_of

from fl_dispatch.ops.spec import Sample

pytest.importorskip("vllm", reason="compares with vLLM, which is not installed in this environment")

from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.activation import GeluAndMul, SiluAndMul
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

pytestmark = pytest.mark.vllm
every_dtype = pytest.mark.parametrize("dtype_name", DTYPES)


@pytest.fixture(scope="module", autouse=True)
def vllm_config() -> Iterator[None]:
    with set_current_vllm_config(VllmConfig()):
        yield


def assert_bit_equal(name: str, sample: Sample, native: Any) -> None:
    ours = call(SPECS[name].reference, sample)
    theirs = native if isinstance(native, tuple) else (native,)
    assert [t.dtype for t in ours] == [t.dtype for t in theirs], sample.label
    assert all(map(torch.equal, ours, theirs)), sample.label


@every_dtype
def test_silu_and_mul(dtype_name: str) -> None:
    for sample in samples_of("silu_and_mul", dtype_name):
        assert_bit_equal("silu_and_mul", sample, SiluAndMul.forward_native(*sample.args))


@every_dtype
@pytest.mark.parametrize(("name", "approximate"), [("gelu_and_mul", "none"), ("gelu_tanh_and_mul", "tanh")])
def test_gelu_and_mul(name: str, approximate: str, dtype_name: str) -> None:
    for sample in samples_of(name, dtype_name):
        assert_bit_equal(name, sample, GeluAndMul(approximate).forward_native(*sample.args))


def with_weight(layer: Any, obj: Any) -> Any:
    layer.weight = torch.nn.Parameter(obj.weight, requires_grad=False)
    return layer


@every_dtype
def test_rms_norm(dtype_name: str) -> None:
    compared = 0
    for sample in samples_of("rms_norm", dtype_name):
        if getattr(sample.obj, "cast_x_to_weight_dtype", False):
            layer = with_weight(RMSNorm(len(sample.obj.weight), sample.obj.variance_epsilon), sample.obj)
            assert_bit_equal("rms_norm", sample, layer.forward_native(*sample.args))
            compared += 1
    assert compared >= 36


@pytest.mark.parametrize("residual_dtype", DTYPES.values())
@pytest.mark.parametrize("weight_dtype", DTYPES.values())
@pytest.mark.parametrize("dtype", DTYPES.values())
def test_norms_of_mixed_dtypes(dtype: torch.dtype, weight_dtype: torch.dtype, residual_dtype: torch.dtype) -> None:
    obj = SimpleNamespace(
        weight=torch.randn(96).to(weight_dtype),
        variance_epsilon=1e-5,
        cast_x_before_out_mul=True,
        cast_x_to_weight_dtype=True,
        round_sum_before_norm=False,
    )
    sample = Sample("mixed", obj, (torch.randn(7, 96).to(dtype), torch.randn(7, 96).to(residual_dtype)))
    assert_bit_equal("rms_norm", sample, with_weight(RMSNorm(96, 1e-5), obj).forward_native(*sample.args))
    assert_bit_equal("gemma_rms_norm", sample, with_weight(GemmaRMSNorm(96, 1e-5), obj).forward_native(*sample.args))


@every_dtype
def test_a_layer_without_weight_is_a_layer_with_ones(dtype_name: str) -> None:
    layer = RMSNorm(96, 1e-5, has_weight=False)
    layer.cast_x_before_out_mul = layer.cast_x_to_weight_dtype = True
    sample = Sample("ones", layer, (torch.randn(7, 96).to(DTYPES[dtype_name]),))
    assert_bit_equal("rms_norm", sample, layer.forward_native(*sample.args))


@every_dtype
def test_gemma_rms_norm(dtype_name: str) -> None:
    compared = 0
    for sample in samples_of("gemma_rms_norm", dtype_name):
        if not sample.obj.round_sum_before_norm:
            layer = with_weight(GemmaRMSNorm(len(sample.obj.weight), sample.obj.variance_epsilon), sample.obj)
            assert_bit_equal("gemma_rms_norm", sample, layer.forward_native(*sample.args))
            compared += 1
    assert compared >= 36


@every_dtype
def test_rotary_embedding(dtype_name: str) -> None:
    compared = 0
    for sample in samples_of("rotary_embedding", dtype_name):
        query, key, _, _, position_ids = sample.args
        if not len(query):
            continue  # vLLM's view(0, -1, head_size) is an error
        head_size, rotary_dim = sample.obj.head_size, sample.obj.rotary_dim
        layer = RotaryEmbedding(head_size, rotary_dim, 128, 10000.0, sample.obj.is_neox_style, query.dtype)
        layer.cos_sin_cache = sample.obj.cos_sin_cache
        assert_bit_equal("rotary_embedding", sample, layer.forward_native(position_ids, query, key))
        compared += 1
    assert compared >= 40
