# SPDX-License-Identifier: Apache-2.0
"""Calls judged against float64: what is found, where it is said, and that results and traces stay as they are."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fl_dispatch import FrozenSelectionError, OpManager, SelectionPolicy
from fl_dispatch.ops import load_spec

Build = Callable[..., Any]
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
        built = manager(impl(op="rms_norm", run=run, **declared), policy=SelectionPolicy(prefer=("vendor",)))
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
        reads += len(comparison._tables)
    assert reads == 4
    tables[0].add_(1.0)  # no implementation may write to it: judged by what it held first
    built.call_op("rotary_embedding", None, query.clone(), query.clone(), *tables, positions)
    (row,) = comparison.as_rows()
    assert (row["calls"], row["wrong_calls"]) == (3, 1)
    del tables
    assert comparison._tables == {}


def test_of_a_large_call_other_rows_are_judged_each_time(impl: Build, manager: Build) -> None:
    """A kernel that spoils one row of many: found within as many calls as there are rows between two that are judged."""
    silu = load_spec("silu_and_mul").reference

    def spoils_a_row(obj: Any, x: Any) -> Any:
        out = silu(obj, x)
        out[5] += 1.0
        return out

    built = manager(impl(op="silu_and_mul", run=spoils_a_row), policy=SelectionPolicy(prefer=("vendor",)))
    built.watch(numbers=True)
    x = torch.ones(64, 1 << 16)  # four times what is judged of a call, so every fifth row is
    wrong = []
    for _ in range(5):
        built.call_op("silu_and_mul", None, x)
        wrong.append(only_row(built)["wrong_calls"])
    assert wrong[-1] == 1
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
    built = manager(impl(op="rms_norm", run=off_by_a_tenth), policy=SelectionPolicy(prefer=("vendor",)))
    layer = Norm()
    site = built.bind("rms_norm", layer)
    assert site.impl is not None
    assert site.fn is site.impl.fn
    assert built.comparison is None
    built.watch(numbers=True)
    site.fn(layer, torch.ones(2, 8))
    assert only_row(built)["wrong_calls"] == 1
