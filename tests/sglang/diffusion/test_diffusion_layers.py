# SPDX-License-Identifier: Apache-2.0
"""SGLang Diffusion's real layers with registered forwards: its rules for custom operators."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch

pytest.importorskip("diffusion_plugins", exc_type=ImportError)

from diffusion_case import layers, started
from sglang.multimodal_gen.runtime import platforms
from sglang.multimodal_gen.runtime.platforms import cpu

import sglang_fl.diffusion.backend as backend

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("settled", [True, False])
def test_real_layers_run_our_operators_and_compute_what_sglangs_do(
    ours: backend.Started, dtype: torch.dtype, settled: bool
) -> None:
    known, generator = layers(), torch.Generator().manual_seed(1)
    x, residual = (torch.randn(2, 5, 64, generator=generator).to(dtype) for _ in range(2))
    positions = torch.arange(5).repeat(2, 1)
    cases: list[tuple[Any, str, tuple[Any, ...]]] = [
        (known.SiluAndMul(), "silu_and_mul", (x,)),
        (known.GeluAndMul("none"), "gelu_and_mul", (x,)),
        (known.GeluAndMul("tanh"), "gelu_tanh_and_mul", (x,)),
        (known.RMSNorm(64, eps=1e-5), "rms_norm", (x,)),
        (known.RMSNorm(64).to(dtype), "rms_norm", (x, residual)),
        (
            known.RotaryEmbedding(32, 32, 64, 10000, False, torch.float32),
            "rotary_embedding",
            (positions, x, x[..., :32]),
        ),
        (
            known.RotaryEmbedding(32, 16, 64, 10000, True, torch.float32),
            "rotary_embedding",
            (positions, x, x[..., :32]),
        ),
        (
            known.LinearScalingRotaryEmbedding(32, 32, 64, 10000, True, torch.float32, 2.0),
            "rotary_embedding",
            (positions, x, x[..., :32]),
        ),
    ]
    if "cast_x_before_out_mul" in inspect.signature(known.RMSNorm).parameters:  # from 0.5.22 on
        cases.append((known.RMSNorm(64, cast_x_before_out_mul=True).to(dtype), "rms_norm", (x,)))
    for layer, operator, arguments in cases:
        if settled:
            assert ours.forwards.settle_layer(layer) is None
        got = layer(*(argument.clone() for argument in arguments))
        wanted = layer.forward_native(*(argument.clone() for argument in arguments))
        assert layer._forward_method.__func__.dispatched_by_fl, operator
        (site,) = [site for site in ours.forwards._manager.sites() if site.obj is layer]
        assert (site.op_name, site.impl.impl_id) == (operator, "reference")
        # The operator rounds cos and sin to the dtype of query and key, SGLang's method does not.
        exact = operator != "rotary_embedding" or dtype == torch.float32
        tolerance = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 2**-6, "atol": 2**-6}
        torch.testing.assert_close(got, wanted, **tolerance)


def test_on_sglangs_own_platform_the_hook_answers_and_the_layers_own_method_is_what_sglang_would_run(
    ours: backend.Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = layers()
    monkeypatch.setattr(platforms, "_current_platform", cpu.CpuPlatform())
    here = started({"OOT_BLACKLIST": "silu_and_mul"})
    original = known.RMSNorm.dispatch_forward
    monkeypatch.setattr(
        known.CustomOp, "dispatch_forward", lambda layer: here.forwards.around_dispatch(original, layer)
    )
    norm, activation, other = known.RMSNorm(8), known.SiluAndMul(), known.FP32LayerNorm(8)
    x = torch.arange(8.0).reshape(1, 8)
    for layer in (norm, activation, other):
        assert here.forwards.settle_layer(layer) is None
        assert torch.equal(layer(x), layer.forward_native(x))
    assert norm._forward_method.__func__.dispatched_by_fl
    assert activation._forward_method == activation.forward_cpu
    assert other._forward_method == other.forward_cpu


def test_a_registered_forward_is_taken_when_a_layer_is_constructed_and_decides_once(ours: backend.Started) -> None:
    layer = layers().SiluAndMul()
    assert layer._forward_method.func.bridge.operators == ("silu_and_mul",)
    layer(torch.ones(1, 8))
    decided = layer._forward_method
    layer(torch.ones(1, 8))
    assert layer._forward_method is decided


def test_what_is_settled_before_the_first_call_does_not_change_in_it(ours: backend.Started) -> None:
    """A compiler that traces the first call sees what later calls run."""
    layer = layers().RMSNorm(8)
    ours.forwards.settle_layer(layer)
    before = layer._forward_method
    layer(torch.ones(1, 8))
    assert layer._forward_method is before


def test_a_deep_copy_computes_with_its_own_weights(ours: backend.Started) -> None:
    layer = layers().RMSNorm(8)
    for settle in (False, True):
        if settle:
            ours.forwards.settle_layer(layer)
        twin = copy.deepcopy(layer)
        with torch.no_grad():
            twin.weight.fill_(3.0)
        assert torch.equal(twin(torch.ones(1, 8)), 3.0 * layer(torch.ones(1, 8)))


def test_offsets_and_a_cache_that_was_replaced_are_those_of_the_call(ours: backend.Started) -> None:
    layer = layers().RotaryEmbedding(8, 8, 32, 10000, True, torch.float32)
    ours.forwards.settle_layer(layer)
    arguments = torch.arange(3), torch.randn(3, 8), torch.randn(3, 8)
    for given in ({}, {"offsets": torch.tensor([4, 5, 6])}):
        torch.testing.assert_close(layer(*arguments, **given), layer.forward_native(*arguments, **given))
    before, _ = layer(*arguments)
    layer.cos_sin_cache = layer.cos_sin_cache.flip(0)
    torch.testing.assert_close(layer(*arguments), layer.forward_native(*arguments))
    assert not torch.equal(layer(*arguments)[0], before)


def test_neither_query_nor_key_is_written_to(ours: backend.Started) -> None:
    layer = layers().RotaryEmbedding(8, 8, 16, 10000, True, torch.float32)
    ours.forwards.settle_layer(layer)
    (site,) = [site for site in ours.forwards._manager.sites() if site.obj is layer]
    function, asked = site.fn, []
    # The reference writes to neither, whatever it is told; a vendor's does as it is told.
    site.fn = lambda *arguments: asked.append(arguments[-1]) or function(*arguments)
    query, key = torch.ones(3, 8), torch.ones(3, 8)
    rotated, _ = layer(torch.arange(3), query, key)
    assert torch.equal(query, torch.ones(3, 8))
    assert torch.equal(key, torch.ones(3, 8))
    assert not torch.equal(rotated, query)
    assert asked == [False]


def test_layers_outside_the_contract_stay_with_sglang_and_the_reason_is_kept(
    ours: backend.Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = layers()

    class Overridden(known.RMSNorm):  # type: ignore[misc, name-defined]
        def forward_native(self, x: Any, residual: Any = None) -> Any:
            return x

    monkeypatch.setenv("SGLANG_ENABLE_DETERMINISTIC_INFERENCE", "1")
    pinned = known.RMSNorm(8)
    monkeypatch.delenv("SGLANG_ENABLE_DETERMINISTIC_INFERENCE")
    cases = {
        known.RMSNorm(8, var_hidden_size=4): "variance_size_override=4",
        known.RotaryEmbedding(8, 8, use_precomputed_cache=False): "takes cos and sin with each call and keeps no cache",
        known.FP32LayerNorm(8): "subtracts the mean: no standard operator",
        known.QuickGELU(): "no gate: no standard operator",
        pinned: "SGLang pinned its own method in __init__",
        Overridden(8): "overrides Overridden.forward_native",
    }
    for layer, reason in cases.items():
        assert ours.forwards.settle_layer(layer) is None
        assert reason in ours.forwards._left[layer][2]
    assert len(ours.forwards.left()) == len(cases)
    assert torch.equal(pinned(torch.ones(1, 8)), pinned.forward_native(torch.ones(1, 8)))


def test_registration_is_by_exact_class_so_a_subclass_that_came_later_is_served_when_it_is_settled(
    ours: backend.Started,
) -> None:
    class Later(layers().RMSNorm):  # type: ignore[misc]
        pass

    layer = Later(8)
    assert layer._forward_method == layer.forward_native
    assert ours.forwards.settle_layer(layer) is None
    assert layer._forward_method.__func__.dispatched_by_fl


def test_every_kind_of_layer_that_sglang_dispatches_is_served_or_left_with_a_reason() -> None:
    import importlib.util

    from sglang_fl.diffusion.bridges import BRIDGES, LEFT
    from sglang_fl.diffusion.forwards import _names

    for module in ("elementwise", "fused_scale_shift_gate"):  # besides those of `layers`
        name = f"sglang.multimodal_gen.runtime.layers.{module}"
        if importlib.util.find_spec(name) is not None:  # not in every version
            importlib.import_module(name)

    def below(klass: type) -> set[type]:
        return {klass}.union(*map(below, klass.__subclasses__()))

    known = below(layers().CustomOp) - {layers().CustomOp}
    # SGLang's own; a base class is never a layer itself.
    kinds = {klass for klass in known if klass.__module__.startswith("sglang.") and klass.__name__[0] != "_"}
    assert len(kinds) > 12
    assert {klass for klass in kinds if not {*BRIDGES, *LEFT} & set(_names(klass))} == set()


def test_without_a_registered_forward_a_layer_runs_the_platforms_or_the_general_method() -> None:
    known = layers()
    for key, wanted in (("cuda", "forward_cuda"), ("acme", "forward_oot"), ("native", "forward_native")):
        forwards = started({"OOT_BLACKLIST": "rms_norm"}, key).forwards
        assert forwards._own_method(known.RMSNorm(8)).__name__ == wanted


def test_lists_and_deterministic_mode_leave_layers_to_sglang(
    monkeypatch: pytest.MonkeyPatch, ours: backend.Started
) -> None:
    known = layers()
    found = started({"OOT_BLACKLIST": "silu_and_mul"})
    layer = known.SiluAndMul()
    found.forwards.settle_layer(layer)
    assert layer._forward_method == layer.forward_native
    assert "in the black list" in found.forwards._left[layer][2]
    monkeypatch.setenv("SGLANG_ENABLE_DETERMINISTIC_INFERENCE", "1")
    layer = known.GeluAndMul()
    found.forwards.settle_layer(layer)
    assert found.forwards._left[layer][2] == "SGLang's deterministic mode fixes the kernels"
