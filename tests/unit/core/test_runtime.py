# SPDX-License-Identifier: Apache-2.0
"""The module-level functions, which share one manager."""

from __future__ import annotations

import inspect

import pytest
import torch

import fl_dispatch
from fl_dispatch import OpRegistry, SelectionPolicy, explain, ops


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    """The default manager as it was, whatever variables the machine has."""
    for name in ("FL_DISPATCH_PREFER", "FL_DISPATCH_STRICT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("op", ops.STANDARD_OPERATORS)
def test_typed_functions_have_the_standard_signature(op):
    typed = inspect.signature(getattr(ops, op)).parameters
    standard = OpRegistry().spec(op).signature.parameters
    assert [(p.name, p.default) for p in typed.values()] == [(p.name, p.default) for p in standard.values()]


@pytest.mark.parametrize("residual", [False, True])
def test_typed_functions_call_op_and_resolve_op_agree(layer, residual):
    x = torch.randn(3, 8)
    args = (x, x) if residual else (x,)
    results = [
        call(layer, *args)
        for call in (
            ops.rms_norm,
            fl_dispatch.resolve_op("rms_norm"),
            lambda *given: fl_dispatch.call_op("rms_norm", *given),
            OpRegistry().spec("rms_norm").reference,
        )
    ]
    first, *rest = [result if residual else (result,) for result in results]
    for other in rest:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("op", ["silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul", "gemma_rms_norm"])
def test_each_typed_function_serves_its_operator(layer, x, op):
    with fl_dispatch.policy_context(SelectionPolicy(prefer="reference")):
        assert torch.equal(getattr(ops, op)(layer, x), OpRegistry().spec(op).reference(layer, x))


def test_the_typed_rotary_embedding_passes_every_argument(layer):
    q, k, table = torch.randn(2, 2, 4), torch.randn(2, 1, 4), torch.randn(4, 2)
    args = (q, k, table, table, torch.tensor([1, 3]), True, False)
    with fl_dispatch.policy_context(SelectionPolicy(prefer="reference")):
        ours = ops.rotary_embedding(layer, *args)
    theirs = OpRegistry().spec("rotary_embedding").reference(layer, *args)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("op", ["silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul", "rms_norm", "gemma_rms_norm"])
def test_typed_functions_are_guarded(layer, op):
    with pytest.raises(fl_dispatch.OpArgumentError, match=f"operator '{op}' called with"):
        getattr(ops, op)(layer, torch.ones(2, 7))


def test_the_typed_rotary_embedding_is_guarded(layer):
    with pytest.raises(fl_dispatch.OpArgumentError, match="operator 'rotary_embedding' called with"):
        ops.rotary_embedding(layer, 1, 2, 3, 4, 5)


def test_explain_answers_for_another_device_and_dtype():
    selection = explain("rms_norm", dtype="float16", device_type="npu", policy=SelectionPolicy(prefer="reference"))
    assert selection.chosen.impl_id == "reference"
    assert str(selection.facts) == "npu, float16"


def test_explain_takes_a_layer(make_layer):
    layer = make_layer(cast_x_before_out_mul=True)
    reasons = {c.impl.impl_id: c.reason for c in explain("rms_norm", obj=layer).candidates}
    assert "flagos" in reasons
