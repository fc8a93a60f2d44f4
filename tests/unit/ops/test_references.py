# SPDX-License-Identifier: Apache-2.0
"""What the references promise beside their numbers: purity, dtypes, and that torch.compile takes them whole."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from comparing import DTYPES, SPECS, call, samples_of
from torch._dynamo.testing import CompileCounter

silu_and_mul = SPECS["silu_and_mul"].reference
rms_norm = SPECS["rms_norm"].reference
gemma_rms_norm = SPECS["gemma_rms_norm"].reference
rotary_embedding = SPECS["rotary_embedding"].reference

every_operator = pytest.mark.parametrize("name", SPECS)
every_dtype = pytest.mark.parametrize("dtype_name", DTYPES)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The storage as bytes: gaps between strided rows hold NaN, which equals nothing."""
    return torch.tensor([], dtype=torch.uint8).set_(tensor.untyped_storage()).clone()


@every_dtype
@every_operator
def test_reference_writes_to_none_of_its_inputs(name: str, dtype_name: str) -> None:
    for sample in samples_of(name, dtype_name):
        inputs = [*sample.args, *(v for v in vars(sample.obj).values() if isinstance(v, torch.Tensor))]
        before = [bits(tensor) for tensor in inputs]
        call(SPECS[name].reference, sample)
        assert all(torch.equal(old, bits(new)) for old, new in zip(before, inputs, strict=True)), sample.label


@every_dtype
@every_operator
def test_results_share_no_memory_with_inputs(name: str, dtype_name: str) -> None:
    for sample in samples_of(name, dtype_name):
        given = {tensor.untyped_storage().data_ptr() for tensor in sample.args if tensor.numel()}
        results = [result for result in call(SPECS[name].reference, sample) if result.numel()]
        assert given.isdisjoint(result.untyped_storage().data_ptr() for result in results), sample.label


@every_dtype
@every_operator
def test_results_have_the_dtype_of_the_input(name: str, dtype_name: str) -> None:
    for sample in samples_of(name, dtype_name):
        expected = DTYPES[dtype_name]
        fields = vars(sample.obj)
        widened = fields.get("cast_x_before_out_mul") and not fields.get("cast_x_to_weight_dtype")
        if widened:
            expected = torch.promote_types(expected, sample.obj.weight.dtype)
        assert call(SPECS[name].reference, sample)[0].dtype is expected, sample.label


@every_operator
def test_zero_tokens_give_empty_results(name: str) -> None:
    empty = [sample for sample in samples_of(name, "bfloat16") if not sample.args[0].numel()]
    assert empty
    for sample in empty:
        assert all(result.numel() == 0 for result in call(SPECS[name].reference, sample))


@every_operator
def test_compiles_to_one_graph_without_breaks_or_recompilation(name: str) -> None:
    counter = CompileCounter()
    sample = next(sample for sample in samples_of(name, "bfloat16") if sample.args[0].shape[0] == 17)
    torch._dynamo.reset()
    compiled = torch.compile(SPECS[name].reference, backend=counter, fullgraph=True)
    for _ in range(5):
        results = call(compiled, sample)
    assert counter.frame_count == 1
    assert all(map(torch.equal, results, call(SPECS[name].reference, sample)))


@pytest.mark.parametrize("reference", [rms_norm, gemma_rms_norm])
def test_norm_of_a_module_without_optional_fields_compiles_to_one_graph(reference: Callable[..., Any]) -> None:
    layer: Any = torch.nn.Module()
    layer.weight = torch.nn.Parameter(torch.randn(64, dtype=torch.bfloat16))
    layer.variance_epsilon = 1e-6
    x, residual = torch.randn(3, 64, dtype=torch.bfloat16), torch.randn(3, 64, dtype=torch.bfloat16)
    counter = CompileCounter()
    torch._dynamo.reset()
    compiled = torch.compile(reference, backend=counter, fullgraph=True)
    for _ in range(3):
        results = compiled(layer, x, residual)
    assert counter.frame_count == 1
    assert all(map(torch.equal, results, reference(layer, x, residual)))


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_with_many_token_counts_compiles_to_two_graphs(interleaved: bool) -> None:
    """The second one has a symbolic number of tokens and serves every other."""
    counter = CompileCounter()
    torch._dynamo.reset()
    compiled = torch.compile(rotary_embedding, backend=counter, fullgraph=True)
    table = torch.rand(32, 32)
    for tokens in (4, 7, 9, 30):
        args = (torch.rand(tokens, 4, 64), torch.rand(tokens, 2, 64), table, table, torch.arange(tokens))
        compiled(SimpleNamespace(), *args, interleaved)
    assert counter.frame_count == 2


def test_fields_that_are_absent_mean_what_their_defaults_say() -> None:
    x, residual, weight = torch.randn(3, 5, 64, dtype=torch.bfloat16).unbind()
    for name in ("rms_norm", "gemma_rms_norm"):
        spec = SPECS[name]
        bare = SimpleNamespace(weight=weight[0], variance_epsilon=1e-5)
        optional = {field.name: field.default for field in spec.fields if not field.required}
        full = SimpleNamespace(**vars(bare), **optional)
        assert all(map(torch.equal, spec.reference(bare, x, residual), spec.reference(full, x, residual)))


def test_rms_norm_normalises_the_sum_before_it_is_rounded() -> None:
    # 2049 is 2048 in float16, to even.
    obj = SimpleNamespace(weight=torch.ones(2), variance_epsilon=0.0)
    x, residual = torch.tensor([[2048.0, 2048.0]]).half(), torch.tensor([[1.0, -1.0]]).half()
    out, new_residual = rms_norm(obj, x, residual)
    assert new_residual.tolist() == [[2048.0, 2047.0]]
    total = torch.tensor([[2049.0, 2047.0]])
    assert torch.equal(out, (total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True))).half())


@pytest.mark.parametrize("rounded", [True, False])
def test_gemma_rms_norm_rounds_the_sum_first_only_where_the_field_says_so(rounded: bool) -> None:
    obj = SimpleNamespace(weight=torch.zeros(2), variance_epsilon=0.0, round_sum_before_norm=rounded)
    x, residual = torch.tensor([[2048.0, 2048.0]]).half(), torch.tensor([[1.0, -1.0]]).half()
    out, new_residual = gemma_rms_norm(obj, x, residual)
    assert new_residual.tolist() == [[2048.0, 2047.0]]
    total = torch.tensor([[2048.0, 2047.0]] if rounded else [[2049.0, 2047.0]])
    assert torch.equal(out, (total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True))).half())


def test_cast_first_with_a_wide_weight_returns_the_promoted_dtype() -> None:
    obj = SimpleNamespace(weight=torch.full((4,), 1.0 + 2.0**-20), variance_epsilon=1e-6, cast_x_before_out_mul=True)
    out = rms_norm(obj, torch.ones(2, 4, dtype=torch.float16))
    assert out.dtype is torch.float32
    assert torch.equal(out, obj.weight.expand(2, 4))


def test_cast_to_a_narrow_weight_rounds_to_it_and_returns_the_dtype_of_x() -> None:
    obj = SimpleNamespace(
        weight=torch.ones(3, dtype=torch.bfloat16),
        variance_epsilon=0.0,
        cast_x_before_out_mul=True,
        cast_x_to_weight_dtype=True,
    )
    out = rms_norm(obj, torch.tensor([[1.0, 2.0, 3.0]]))
    assert out.dtype is torch.float32
    assert torch.equal(out, out.bfloat16().float())


def test_an_odd_last_dimension_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="must match the size"):
        silu_and_mul(None, torch.ones(2, 5))


def test_a_position_out_of_range_is_an_error_on_the_cpu() -> None:
    table, x = torch.ones(4, 2), torch.ones(1, 1, 4)
    with pytest.raises(IndexError, match="index out of range"):
        rotary_embedding(None, x, x, table, table, torch.tensor([4]))


def test_rotary_leaves_the_rest_of_a_partial_head_bit_for_bit() -> None:
    for sample in samples_of("rotary_embedding", "float16"):
        rotary_dim = sample.obj.rotary_dim
        for given, got in zip(sample.args[:2], call(rotary_embedding, sample), strict=True):
            assert torch.equal(given[..., rotary_dim:], got[..., rotary_dim:]), sample.label


def test_inplace_makes_no_difference_to_the_reference() -> None:
    for sample in samples_of("rotary_embedding", "bfloat16"):
        results = [
            rotary_embedding(sample.obj, *sample.args, sample.kwargs["rotary_interleaved"], inplace=inplace)
            for inplace in (True, False)
        ]
        assert all(map(torch.equal, *results)), sample.label
