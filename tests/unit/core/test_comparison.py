# SPDX-License-Identifier: Apache-2.0
"""Calls judged against float64: what is found, where it is said, and that results and traces stay as they are."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fl_dispatch import FrozenSelectionError, OpManager, SelectionPolicy
from fl_dispatch.ops import load_spec

Build = Callable[..., Any]
PREFER_VENDOR = SelectionPolicy(prefer=("vendor",))
REFERENCE = load_spec("rms_norm").reference


class Norm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((8,), 2.0), requires_grad=False)
        self.variance_epsilon = 1e-6


@pytest.fixture
def comparing(impl: Build, manager: Build) -> Build:
    """``comparing(run)``: a manager in front of whose reference stands one norm, and which compares."""

    def build(run: Any, **declared: Any) -> OpManager:
        built = manager(impl(op="rms_norm", run=run, **declared), policy=PREFER_VENDOR)
        built.watch(numbers=True)
        return built  # type: ignore[no-any-return]  # of a fixture that builds

    return build


def only_row(manager: OpManager) -> dict[str, Any]:
    assert manager.comparison is not None
    (row,) = manager.comparison.as_rows()
    return row


def off_by_a_tenth(obj: Any, x: Any, residual: Any) -> Any:
    return REFERENCE(obj, x, residual) * 1.1


def test_right_calls_are_counted_with_their_worst_error(comparing: Build) -> None:
    built, layer = comparing(REFERENCE), Norm()
    site = built.bind("rms_norm", layer, label="RMSNorm")
    for _ in range(3):
        site.fn(layer, torch.randn(5, 8))
    row = only_row(built)
    assert (row["calls"], row["wrong_calls"], row["wrong_layers"], row["first_wrong"]) == (3, 0, 0, "")
    assert 0 < row["worst_error_of_tolerance"] < 1
    assert row["worst_call"] == "float32[5, 8]@cpu"


def test_wrong_call_names_layer_elements_and_shapes_once_in_the_log(
    comparing: Build, caplog: pytest.LogCaptureFixture
) -> None:
    built = comparing(off_by_a_tenth)
    model = torch.nn.Sequential(Norm(), Norm())
    built.name_layers(model.named_modules())
    x = torch.ones(5, 8)
    with caplog.at_level(logging.ERROR, logger="fl_dispatch"):
        for layer in model:
            result = built.bind("rms_norm", layer, label="RMSNorm").fn(layer, x)
    assert result == pytest.approx(torch.full((5, 8), 2.2))  # what the implementation gave
    row = only_row(built)
    assert (row["calls"], row["wrong_calls"], row["wrong_layers"]) == (2, 2, 2)
    assert row["first_wrong_layers"] == ["0", "1"]
    assert row["worst_error_of_tolerance"] > 1000
    (message,) = caplog.messages
    assert message.startswith(
        "compare: rms_norm by vendor.acme is wrong in 0: the result is wrong in 40 of 40 elements; "
        "element [0, 0]: got 2.19999"
    )
    assert "the call was float32[5, 8]@cpu." in message
    assert message.endswith("Further ones of RMSNorm are counted in the report")


def test_layer_without_a_known_name_goes_by_its_class(comparing: Build) -> None:
    built, layer = comparing(off_by_a_tenth), Norm()
    built.bind("rms_norm", layer, label="RMSNorm").fn(layer, torch.ones(2, 8))
    assert only_row(built)["first_wrong_layers"] == ["a Norm"]


def test_inputs_that_were_overwritten_in_place_are_judged_as_they_were(comparing: Build) -> None:
    def in_place(obj: Any, x: Any, residual: Any) -> Any:
        out, total = REFERENCE(obj, x, residual)
        return x.copy_(out), residual.copy_(total)

    built, layer = comparing(in_place), Norm()
    x, residual = torch.randn(4, 8), torch.randn(4, 8)
    out, total = built.bind("rms_norm", layer).fn(layer, x, residual)
    assert out is x
    assert total is residual
    assert only_row(built)["wrong_calls"] == 0


def test_input_written_to_without_a_word_is_a_wrong_call(comparing: Build) -> None:
    def spoils_x(obj: Any, x: Any, residual: Any) -> Any:
        result = REFERENCE(obj, x, residual)
        x.zero_()
        return result

    built, layer = comparing(spoils_x, mutates={"residual"}), Norm()
    built.bind("rms_norm", layer).fn(layer, torch.ones(4, 8))
    assert "it wrote to x, which it does not declare to" in only_row(built)["first_wrong"]


def test_large_table_is_copied_once_and_forgotten_with_its_tensor(impl: Build, manager: Build) -> None:
    built = manager(policy=SelectionPolicy(prefer=("reference",)))
    built.watch(numbers=True)
    comparison, reads = built.comparison, 0
    query, positions = torch.randn(2, 1, 8), torch.arange(2)
    tables = [torch.rand(1 << 18, 4), torch.rand(1 << 18, 4)]
    for _ in range(2):
        built.call_op("rotary_embedding", None, query.clone(), query.clone(), *tables, positions)
        reads += len(comparison._tables.kept)
    assert reads == 4
    copies = [entry[-1] for entry in comparison._tables.kept.values()]
    built.call_op("rotary_embedding", None, query.clone(), query.clone(), *tables, positions)
    assert all(now[-1] is then for now, then in zip(comparison._tables.kept.values(), copies, strict=True))
    tables[0].add_(1.0)  # longer sequences, say
    built.call_op("rotary_embedding", None, query.clone(), query.clone(), *tables, positions)
    (row,) = comparison.as_rows()
    assert (row["calls"], row["wrong_calls"]) == (4, 0)
    del tables
    assert comparison._tables.kept == {}


def test_of_a_large_call_other_rows_are_judged_each_time(impl: Build, manager: Build) -> None:
    """A kernel that spoils one row of many: found within as many calls as there are rows between two that are judged."""
    silu = load_spec("silu_and_mul").reference

    def spoils_a_row(obj: Any, x: Any) -> Any:
        out = silu(obj, x)
        out.view(64, -1)[5] += 1.0
        return out

    built = manager(impl(op="silu_and_mul", run=spoils_a_row), policy=PREFER_VENDOR)
    built.watch(numbers=True)
    x = torch.ones(64, 1 << 16)  # four times what is judged of a call, so every fifth row is
    for shape in ((64, -1), (1, 64, -1)):
        for _ in range(20):
            built.call_op("silu_and_mul", None, x.view(shape))
    assert 1 < only_row(built)["wrong_calls"] < 20  # about a fifth of 40
    assert "wrong in 32768 of" in only_row(built)["first_wrong"]


def test_nan_where_float64_has_none_is_a_wrong_call(comparing: Build) -> None:
    built, layer = comparing(lambda obj, x, residual: torch.full_like(x, torch.nan)), Norm()
    built.bind("rms_norm", layer).fn(layer, torch.ones(4, 8))
    row = only_row(built)
    assert row["wrong_calls"] == 1
    assert "got nan" in row["first_wrong"]
    assert row["worst_error_of_tolerance"] is None
    json.dumps(row, allow_nan=False)


def test_dtype_without_a_tolerance_is_counted_and_not_judged(comparing: Build) -> None:
    built, layer = comparing(off_by_a_tenth), Norm()
    built.bind("rms_norm", layer).fn(layer, torch.ones(4, 8, dtype=torch.float64))
    row = only_row(built)
    assert (row["calls"], row["wrong_calls"]) == (1, 0)
    assert row["not_judged"] == {"rms_norm has no tolerance for float64": 1}


def test_what_an_implementation_raises_goes_on_to_the_next_candidate(comparing: Build) -> None:
    def raising(obj: Any, x: Any, residual: Any) -> Any:
        raise RuntimeError("no")

    built, layer = comparing(raising, mutates=frozenset()), Norm()
    site = built.bind("rms_norm", layer)
    x = torch.ones(4, 8)
    try:
        site.fn(layer, x)
    except RuntimeError as error:
        result = site.recover(error, layer, x)
    assert result == pytest.approx(torch.full((4, 8), 2.0))
    assert site.fallbacks == {("vendor.acme", "reference"): 1}


def test_cancelled_sums_are_tolerated_by_the_size_of_what_cancels() -> None:
    """bfloat16 products of size 300 that nearly cancel: off by more than the kit's samples may be, and right."""
    manager = OpManager(policy=SelectionPolicy(prefer=("reference",)), device_type="cpu")
    manager.watch(numbers=True)
    generator = torch.Generator().manual_seed(7)
    angle = torch.rand(64, 32, generator=generator) * 6.3
    cos, sin = angle.cos().bfloat16(), angle.sin().bfloat16()
    query = (torch.randn(64, 4, 64, generator=generator) * 300).bfloat16()
    manager.call_op("rotary_embedding", None, query, query.clone(), cos, sin, torch.arange(64))
    assert 0 < only_row(manager)["worst_error_of_tolerance"] < 1


def test_traced_call_is_left_out_of_the_graph_and_the_comparison(comparing: Build) -> None:
    built, layer = comparing(REFERENCE, traceable=True), Norm()
    built.configure(compiled=True)
    site = built.bind("rms_norm", layer)
    graph = torch.compile(lambda x: site.fn(layer, x), fullgraph=True, backend="aot_eager")
    x = torch.randn(3, 8)
    assert graph(x) == pytest.approx(REFERENCE(layer, x))
    assert built.comparison is not None
    assert built.comparison.as_rows() == []


def test_comparison_cannot_begin_once_a_graph_holds_the_selection(manager: Build) -> None:
    built = manager()
    built.freeze("SGLang's captured graph")
    with pytest.raises(FrozenSelectionError, match="what is watched cannot change any more"):
        built.watch(numbers=True)


def test_sites_of_before_compare_as_well_and_none_does_without(manager: Build, impl: Build) -> None:
    built = manager(impl(op="rms_norm", run=off_by_a_tenth), policy=PREFER_VENDOR)
    layer = Norm()
    site = built.bind("rms_norm", layer)
    assert site.impl is not None
    assert site.fn is site.impl.fn
    assert built.comparison is None
    built.watch(numbers=True)
    site.fn(layer, torch.ones(2, 8))
    assert only_row(built)["wrong_calls"] == 1


# -- what the comparison must not do


def test_call_that_cannot_be_judged_is_counted_with_the_reason_and_served(impl: Build, manager: Build) -> None:
    """Positions beyond the table, which the kernel clamps: float64 has no rows to turn by."""

    def clamps(obj: Any, query: Any, key: Any) -> Any:
        return query, key

    built = manager(impl(op="rotary_embedding", run=clamps, mutates=frozenset()), policy=PREFER_VENDOR)
    built.watch(numbers=True)
    query, table = torch.ones(1, 1, 8), torch.ones(4, 4)
    result = built.call_op("rotary_embedding", None, query, query, table, table, torch.tensor([9]))
    assert result[0] is query
    row = only_row(built)
    assert (row["implementation"], row["calls"], row["wrong_calls"]) == ("vendor.acme", 1, 0)
    assert next(iter(row["not_judged"])).startswith("IndexError: ")
    assert built.failures.noted() == []


def test_result_of_an_odd_type_is_counted_and_handed_on(comparing: Build) -> None:
    built, layer = comparing(lambda obj, x, residual: x.numpy()), Norm()
    result = built.bind("rms_norm", layer).fn(layer, torch.ones(2, 8))
    assert type(result).__name__ == "ndarray"
    assert only_row(built)["calls"] == 1
    assert only_row(built)["wrong_calls"] + sum(only_row(built)["not_judged"].values()) == 1


def test_candidate_that_serves_in_place_of_the_chosen_one_is_judged(impl: Build, manager: Build) -> None:
    def doubled(obj: Any, x: Any, residual: Any) -> Any:
        return REFERENCE(obj, x, residual) * 2

    chosen = impl(
        "first", op="rms_norm", run=REFERENCE, mutates=frozenset(), supports=lambda obj, x, residual=None: False
    )
    built = manager(chosen, impl("second", op="rms_norm", run=doubled), policy=PREFER_VENDOR)
    built.watch(numbers=True)
    layer = Norm()
    built.bind("rms_norm", layer, label="RMSNorm").fn(layer, torch.ones(2, 8))
    row = only_row(built)
    assert (row["implementation"], row["calls"], row["wrong_calls"]) == ("vendor.second", 1, 1)


def test_capturing_calls_are_not_judged(comparing: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy to the CPU would end the capture."""
    monkeypatch.setattr("fl_dispatch.comparison.tracing_or_capturing", lambda: True)
    built, layer = comparing(off_by_a_tenth), Norm()
    built.bind("rms_norm", layer).fn(layer, torch.ones(2, 8))
    assert built.comparison.as_rows() == []


def test_watching_again_keeps_what_was_found(comparing: Build) -> None:
    built, layer = comparing(off_by_a_tenth), Norm()
    built.bind("rms_norm", layer).fn(layer, torch.ones(2, 8))
    built.watch(calls=True)
    built.watch(numbers=True)
    assert only_row(built)["wrong_calls"] == 1


# -- what is wrong


def test_x_written_to_without_a_residual_is_a_wrong_call(comparing: Build) -> None:
    """The caller keeps x as the next residual, whatever the implementation declares."""

    def spoils(obj: Any, x: Any, residual: Any) -> Any:
        return x.copy_(REFERENCE(obj, x))

    for declared in ({}, {"mutates": {"x", "residual"}}):
        built, layer = comparing(spoils, **declared), Norm()
        built.bind("rms_norm", layer).fn(layer, torch.arange(16.0).view(2, 8))
        assert "it wrote to x, which this call does not allow" in only_row(built)["first_wrong"]


def test_query_rotated_in_place_where_that_was_not_asked_for_is_a_wrong_call(impl: Build, manager: Build) -> None:
    rotate = load_spec("rotary_embedding").reference
    tables = torch.rand(4, 4), torch.rand(4, 4)

    def in_place(obj: Any, query: Any, key: Any, cos: Any, sin: Any, position_ids: Any,
                 rotary_interleaved: bool = False, inplace: bool = True) -> Any:  # fmt: skip
        query_out, key_out = rotate(obj, query, key, cos, sin, position_ids, rotary_interleaved, False)
        return query.copy_(query_out), key.copy_(key_out)

    built = manager(impl(op="rotary_embedding", fn=in_place), policy=PREFER_VENDOR)
    built.watch(numbers=True)
    call = (None, torch.rand(2, 1, 8), torch.rand(2, 1, 8), *tables, torch.arange(2))
    built.call_op("rotary_embedding", *call, inplace=True)
    assert only_row(built)["wrong_calls"] == 0
    built.call_op("rotary_embedding", *call, inplace=False)
    assert "it wrote to query, which this call does not allow" in only_row(built)["first_wrong"]


@pytest.mark.parametrize(("given", "returned"), [("bfloat16", "float32"), ("float32", "float16")])
def test_result_of_another_dtype_is_a_wrong_call(impl: Build, manager: Build, given: str, returned: str) -> None:
    silu = load_spec("silu_and_mul").reference
    cast = impl(op="silu_and_mul", run=lambda obj, x: silu(obj, x).to(getattr(torch, returned)))
    built = manager(cast, policy=PREFER_VENDOR)
    built.watch(numbers=True)
    built.call_op("silu_and_mul", None, torch.ones(2, 8, dtype=getattr(torch, given)))
    assert f"a result is {returned} instead of {given}" in only_row(built)["first_wrong"]


def test_weight_that_the_call_itself_changed_does_not_excuse_its_result(comparing: Build) -> None:
    def spoils_weight(obj: Any, x: Any, residual: Any) -> Any:
        obj.weight.mul_(3)
        return REFERENCE(obj, x, residual)

    built, layer = comparing(spoils_weight), Norm()
    built.bind("rms_norm", layer).fn(layer, torch.ones(2, 8))
    assert only_row(built)["wrong_calls"] == 1


def test_optional_fields_of_the_layer_count(impl: Build, manager: Build) -> None:
    """gemma_rms_norm of a layer with another epsilon: read from the layer, not the default."""
    layer = Norm()
    layer.variance_epsilon = 10.0
    built = manager(policy=SelectionPolicy(prefer=("reference",)))
    built.watch(numbers=True)
    built.bind("rms_norm", layer).fn(layer, torch.ones(2, 8))
    assert only_row(built)["wrong_calls"] == 0


def rotated(manager: Build, impl: Build, query: torch.Tensor, spoil: Callable[[torch.Tensor], Any]) -> dict[str, Any]:
    """What is found of a rotation of float32 whose result was spoilt."""
    rotate = load_spec("rotary_embedding").reference

    def spoilt(obj: Any, query: Any, key: Any, cos: Any, sin: Any, position_ids: Any,
               rotary_interleaved: bool = False, inplace: bool = True) -> Any:  # fmt: skip
        results = rotate(obj, query, key, cos, sin, position_ids, rotary_interleaved, False)
        spoil(results[0])
        return results

    built = manager(impl(op="rotary_embedding", fn=spoilt), policy=PREFER_VENDOR)
    built.watch(numbers=True)
    angle = torch.linspace(0.0, 3.0, 4).repeat(query.shape[0], 1)
    positions = torch.arange(query.shape[0])
    built.call_op("rotary_embedding", None, query, torch.ones_like(query), angle.cos(), angle.sin(), positions)
    return only_row(built)


def test_large_row_does_not_excuse_another(manager: Build, impl: Build) -> None:
    query = torch.ones(2, 1, 8)
    query[0] = 1e6
    assert rotated(manager, impl, query, lambda out: out[1].add_(1e-3))["wrong_calls"] == 1


def test_infinity_does_not_excuse_its_row(manager: Build, impl: Build) -> None:
    query = torch.ones(1, 1, 8)
    query[0, 0, 0] = torch.inf
    assert rotated(manager, impl, query, lambda out: out[0, 0, 2].add_(1e-3))["wrong_calls"] == 1


def test_error_is_measured_by_the_size_of_its_row(manager: Build, impl: Build) -> None:
    """Thousand times the values, thousand times the rounding: a hundredth of a thousandth is none."""
    row = rotated(manager, impl, torch.full((1, 1, 8), 4000.0), lambda out: out.add_(0.02))
    assert row["wrong_calls"] == 1
    assert row["worst_error_of_tolerance"] < 200


def test_small_values_do_not_excuse_a_wrong_result(manager: Build, impl: Build) -> None:
    """As of a model with random weights, whose queries are some hundred-thousandths."""
    row = rotated(manager, impl, torch.full((2, 1, 8), 2e-5), lambda out: out.mul_(1.01))
    assert row["wrong_calls"] == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [1.0, 3e-3])
def test_zeros_are_wrong_whatever_the_size_of_the_inputs(
    comparing: Build, manager: Build, impl: Build, dtype: torch.dtype, size: float
) -> None:
    torch.manual_seed(5)
    built = manager(impl(run=lambda obj, x: torch.zeros(32, 32, dtype=x.dtype)), policy=PREFER_VENDOR)
    built.watch(numbers=True)
    built.call_op("silu_and_mul", None, (torch.randn(32, 64) * size).to(dtype))
    assert only_row(built)["wrong_calls"] == 1


# -- what is right


@pytest.mark.parametrize("size", [1.0, 1e-2, 2e-5, 1e-7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "op_name", ["silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul", "rms_norm", "rotary_embedding"]
)
def test_reference_is_right_whatever_the_size_of_its_inputs(
    manager: Build, op_name: str, dtype: torch.dtype, size: float
) -> None:
    torch.manual_seed(3)
    built = manager(policy=SelectionPolicy(prefer=("reference",)))
    built.watch(numbers=True)
    x = (torch.randn(64, 64) * size).to(dtype)
    if op_name == "rms_norm":
        layer = Norm()
        layer.weight.data = torch.randn(64).to(dtype)
        built.call_op(op_name, layer, x, (torch.randn(64, 64) * size).to(dtype))
    elif op_name == "rotary_embedding":
        angle = torch.outer(torch.arange(64.0), 10.0 ** -torch.arange(4.0))
        query, key = x.view(64, 8, 8), x[:, :16].reshape(64, 2, 8)
        built.call_op(op_name, None, query, key, angle.cos(), angle.sin(), torch.arange(64))
    else:
        built.call_op(op_name, None, x)
    row = only_row(built)
    assert (row["calls"], row["wrong_calls"], row["not_judged"]) == (1, 0, {}), row


def right(manager: Build, op_name: str, x: torch.Tensor) -> dict[str, Any]:
    """What is found of the reference."""
    built = manager(policy=SelectionPolicy(prefer=("reference",)))
    built.watch(numbers=True)
    built.call_op(op_name, None, x)
    return only_row(built)


def test_infinity_is_right_where_the_dtype_cannot_hold_the_number(manager: Build) -> None:
    x = torch.full((2, 8), 300.0, dtype=torch.float16)
    assert right(manager, "silu_and_mul", x)["wrong_calls"] == 0


def test_infinity_of_the_other_sign_is_wrong(manager: Build, impl: Build) -> None:
    built = manager(impl(run=lambda obj, x: torch.full((2, 4), -torch.inf, dtype=x.dtype)), policy=PREFER_VENDOR)
    built.watch(numbers=True)
    built.call_op("silu_and_mul", None, torch.full((2, 8), 300.0, dtype=torch.float16))
    assert only_row(built)["wrong_calls"] == 1


@pytest.mark.parametrize(
    ("op_name", "dtype", "gate", "up"),
    [
        ("gelu_tanh_and_mul", torch.float32, -4.5, 1000.0),
        ("gelu_tanh_and_mul", torch.float16, -4.5, 1000.0),
        ("silu_and_mul", torch.float16, -14.0, 100.0),
        ("silu_and_mul", torch.float32, -89.0, 4000.0),
        ("silu_and_mul", torch.float16, 2.0**-10, 2.0**-10),
    ],
)
def test_what_the_activation_rounds_away_counts_by_what_it_is_multiplied_with(
    manager: Build, op_name: str, dtype: torch.dtype, gate: float, up: float
) -> None:
    gates = torch.linspace(gate, gate * 1.1, 64)
    x = torch.cat((gates, torch.full((64,), up))).unsqueeze(0).to(dtype)
    assert right(manager, op_name, x)["worst_error_of_tolerance"] <= 1.0


def test_weight_of_another_dtype_is_judged_by_the_coarser(manager: Build) -> None:
    layer = Norm()
    layer.weight.data = layer.weight.bfloat16()
    layer.cast_x_before_out_mul = layer.cast_x_to_weight_dtype = True
    built = manager(policy=SelectionPolicy(prefer=("reference",)))
    built.watch(numbers=True)
    result = built.bind("rms_norm", layer).fn(layer, torch.randn(4, 8))
    assert result.dtype == torch.float32
    assert only_row(built)["wrong_calls"] == 0


def test_input_that_changes_in_place_is_no_table_of_an_operator_without_rows(
    impl: Build, manager: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    silu = load_spec("silu_and_mul")
    built = manager(impl(op="silu_and_mul", run=silu.reference), policy=PREFER_VENDOR)
    monkeypatch.setattr(built.registry, "spec", lambda name: dataclasses.replace(silu, by_row=frozenset()))
    built.watch(numbers=True)
    buffer = torch.randn(1024, 128)
    for _ in range(2):
        built.call_op("silu_and_mul", None, buffer.data)
        buffer.data.copy_(torch.randn(1024, 128))
    assert only_row(built)["wrong_calls"] == 0
