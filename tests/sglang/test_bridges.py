# SPDX-License-Identifier: Apache-2.0
"""The bridges on real SGLang layers, hooked by SGLang's own plug-in loader, without an engine around them."""

from __future__ import annotations

import copy
import dataclasses
import gc
import importlib
import pickle
import weakref
from typing import Any

import pytest
import torch
from real_layers import load, native, norm, rotary, settled
from rotation import check_results
from torch._dynamo.testing import CompileCounter

from fl_dispatch import SelectionPolicy, default_manager
from sglang_fl.layers import LayerBinder

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module", autouse=True)
def loaded() -> Any:
    """SGLang's loader has run in this process; what we installed."""
    return load()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(5, 32, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("cast_first", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norm_equals_sglangs_own_bit_for_bit(
    loaded: Any, x: torch.Tensor, cast_first: bool, dtype: torch.dtype
) -> None:
    layer = norm(cast_x_before_out_mul=cast_first)
    site = settled(loaded, layer)
    x = x.to(dtype)
    residual = x.flip(0)
    with torch.no_grad():
        assert torch.equal(layer(x), native(layer, x))
        for ours, theirs in zip(layer(x.clone(), residual.clone()), native(layer, x, residual), strict=True):
            assert torch.equal(ours, theirs)
    assert site.calls == 2


def test_post_residual_addition_is_added_to_the_residual_first(loaded: Any, x: torch.Tensor) -> None:
    layer = norm()
    settled(loaded, layer)
    residual, extra = x.flip(0), x.flip(1)
    with torch.no_grad():
        ours = layer(x.clone(), residual.clone(), extra)
        theirs = native(layer, x, residual + extra)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"var_hidden_size": 16}, "variance_size_override=16"),
        ({"has_weight": False}, "has no weight"),
        ({"fp32_residual": True}, "fp32_residual keeps the residual in float32"),
        ({"override_orig_dtype": torch.float32}, "override_orig_dtype=torch.float32"),
    ],
)
def test_norm_outside_the_contract_stays_with_sglang(loaded: Any, x: torch.Tensor, options: Any, reason: str) -> None:
    layer = norm(**options)
    assert settled(loaded, layer) == reason
    assert layer._forward_method.__self__ is layer
    with torch.no_grad():
        assert torch.equal(layer(x), native(layer, x))


def test_layer_forced_to_its_native_method_stays_with_sglang(loaded: Any) -> None:
    layer = norm()
    layer._forward_method = layer.forward_native
    assert settled(loaded, layer) == "SGLang pinned its own method in __init__"


def test_activation_by_its_approximation(loaded: Any, x: torch.Tensor) -> None:
    from sglang.srt.layers.activation import GeluAndMul, SiluAndMul

    for layer, op in (
        (SiluAndMul(), "silu_and_mul"),
        (GeluAndMul(approximate="none"), "gelu_and_mul"),
        (GeluAndMul(approximate="tanh"), "gelu_tanh_and_mul"),
    ):
        assert settled(loaded, layer).op_name == op
        assert torch.equal(layer(x), native(layer, x))
    assert settled(loaded, GeluAndMul(approximate="quick")) == "approximate='quick' has no standard operator"


@pytest.mark.parametrize("options", [{}, {"is_neox_style": False}, {"rotary_dim": 8}])
def test_rotary_equals_sglangs_own(loaded: Any, options: Any) -> None:
    layer = rotary(**options)
    site = settled(loaded, layer)
    positions = torch.tensor([3, 0, 3, 63, 7])
    query, key = torch.randn(5, 4 * 16), torch.randn(5, 2 * 16)
    for offsets in (None, torch.zeros(5, dtype=torch.int64)):
        ours = layer(positions, query.clone(), key.clone(), offsets)
        for a, b in zip(ours, native(layer, positions, query, key, offsets), strict=True):
            assert torch.equal(a, b)
    assert site.calls == 2


@pytest.mark.parametrize("inplace", [True, False])
def test_what_was_rotated_in_place_is_handed_back_and_what_was_not_in_its_shape(loaded: Any, inplace: bool) -> None:
    layer = rotary()
    site = settled(loaded, layer)
    positions, query, key = torch.tensor([3, 0, 63]), torch.randn(3, 64), torch.randn(3, 32)
    wanted = native(layer, positions, query.clone(), key.clone())
    check_results(layer, site, (positions, query, key), wanted, inplace)


def test_rotary_follows_a_cache_that_was_replaced(loaded: Any) -> None:
    layer = rotary()
    settled(loaded, layer)
    positions, query, key = torch.tensor([1, 2]), torch.randn(2, 16), torch.randn(2, 16)
    before = layer(positions, query.clone(), key.clone())[0]
    layer.cos_sin_cache = layer.cos_sin_cache.flip(0).contiguous()
    after = layer(positions, query.clone(), key.clone())[0]
    assert not torch.equal(before, after)
    assert torch.equal(after, native(layer, positions, query, key)[0])


def test_rotary_serves_zero_tokens(loaded: Any) -> None:
    layer = rotary()
    settled(loaded, layer)
    query, key = layer(torch.empty(0, dtype=torch.int64), torch.empty(0, 64), torch.empty(0, 32))
    assert (query.shape, key.shape) == ((0, 64), (0, 32))


def test_rotary_call_that_writes_the_cache_itself_goes_to_sglang(loaded: Any) -> None:
    layer = rotary()
    site = settled(loaded, layer)
    positions, query, key = torch.tensor([1]), torch.randn(1, 16), torch.randn(1, 16)
    with pytest.raises(AssertionError, match="fused_set_kv_buffer_arg is not supported for native"):
        layer(positions, query, key, fused_set_kv_buffer_arg=object())
    assert site.calls == 0
    wanted = "the framework, key and value written to the cache in the same call"
    assert site.fallbacks == {("reference", wanted): 1}


def test_subclass_that_only_changes_the_cache_is_served_and_one_that_overrides_forward_is_not(loaded: Any) -> None:
    from sglang.srt.layers.layernorm import RMSNorm

    class Renamed(RMSNorm):
        pass

    class Scaled(RMSNorm):
        def forward_native(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward_native(*args, **kwargs) * 2

    assert settled(loaded, Renamed(32)).label == "Renamed"
    assert settled(loaded, Scaled(32)) == "overrides Scaled.forward_native of RMSNorm"
    linear = rotary("LinearScalingRotaryEmbedding", scaling_factors=[2.0])
    assert settled(loaded, linear).op_name == "rotary_embedding"


def test_parameter_of_a_newer_sglang_goes_to_its_own_method(loaded: Any, x: torch.Tensor) -> None:
    from sglang.srt.layers.layernorm import RMSNorm

    from sglang_fl.bridges import find_bridge
    from sglang_fl.layers import tolerant

    bridge, _ = find_bridge(RMSNorm)
    assert bridge is not None
    site = settled(loaded, norm())
    seen: list[str] = []

    def newer(x: Any, residual: Any = None, post_residual_addition: Any = None, shiny: Any = None) -> Any:
        seen.append("native")

    forward = tolerant(bridge, lambda *args, **kwargs: seen.append("ours"), newer, site)
    layer = norm()
    forward(layer, x)
    forward(layer, x, residual=x, shiny=None)
    forward(layer, x, shiny=1)
    forward(layer, x, None, None, 1)
    assert seen == ["ours", "ours", "native", "native"]
    assert set(site.fallbacks) == {
        ("reference", "the framework, new parameters shiny"),
        ("reference", "the framework, new parameters given by position"),
    }


def test_skipped_seam_is_noticed(loaded: Any) -> None:
    layer = norm()
    layer._forward_method = lambda *args, **kwargs: None
    problem = loaded.binder.settle_layer(layer)
    assert problem is not None
    assert problem.startswith("RMSNorm runs ")
    assert problem.endswith(f"and not what {loaded.seam.target} answered")


def test_deep_copy_of_a_layer_computes_with_its_own_weight(loaded: Any, x: torch.Tensor) -> None:
    layer = norm()
    settled(loaded, layer)
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        twin.weight.mul_(2)
        assert torch.equal(layer(x), native(layer, x))
        assert torch.equal(twin(x), native(twin, x))


def test_seam_that_answers_with_sglangs_own_method_is_noticed(loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = getattr(importlib.import_module(loaded.seam.module), loaded.seam.owner)
    hooked = vars(owner)[loaded.seam.method]
    monkeypatch.setattr(owner, loaded.seam.method, hooked.__wrapped__)
    problem = loaded.binder.settle_layer(norm())
    assert problem == f"RMSNorm was never asked about at {loaded.seam.target}"


def test_layer_that_nothing_decided_where_construction_decides_is_noticed(loaded: Any) -> None:
    """As when the older place is still there, and inert."""
    binder = LayerBinder(default_manager(), loaded.config, dataclasses.replace(loaded.seam, lazy=False))
    layer = norm()
    layer._forward_method = None
    assert binder.settle_layer(layer) == f"RMSNorm was never asked about at {loaded.seam.target}"


def test_decided_layer_is_not_kept_alive(loaded: Any) -> None:
    for make in (norm, rotary, lambda: norm(fp32_residual=True)):
        layer = make()
        settled(loaded, layer)
        gone = weakref.ref(layer)
        del layer
        gc.collect()
        assert gone() is None


def test_pickled_layer_comes_back_with_sglangs_own_method(loaded: Any, x: torch.Tensor) -> None:
    layer = norm()
    settled(loaded, layer)
    twin = pickle.loads(pickle.dumps(layer))
    with torch.no_grad():
        assert torch.equal(twin(x), native(layer, x))


def test_deep_copy_of_a_decided_layer_passes_the_check(loaded: Any) -> None:
    layer = norm()
    settled(loaded, layer)
    twin, left = copy.deepcopy(layer), len(loaded.binder.left())
    assert loaded.binder.settle_layer(twin) is None
    assert len(loaded.binder.left()) <= left  # and is not taken for one that SGLang pinned


def test_counted_layer_compiles_into_one_graph(loaded: Any, x: torch.Tensor) -> None:
    layers = torch.nn.ModuleList([norm(), norm()])
    for layer in layers:
        settled(loaded, layer)
    counter = CompileCounter()
    step = torch.compile(
        lambda y: layers[1]._forward_method(layers[0]._forward_method(y)), backend=counter, fullgraph=True
    )
    with torch.no_grad():
        for _ in range(5):
            step(x)
    assert counter.frame_count == 1


@pytest.fixture
def policy() -> Any:
    """``policy(prefer="native")`` is in force until the test ends."""
    manager = default_manager()
    before = manager.policy
    yield lambda **wishes: manager.configure(policy=SelectionPolicy(**wishes))
    manager.configure(policy=before)


def test_layers_whose_native_method_is_preferred_run_sglangs_own_function(loaded: Any, policy: Any) -> None:
    from sglang.srt.layers.activation import SiluAndMul

    policy(prefer="native", strict=True)
    for make in (norm, rotary, SiluAndMul):
        layer = make()
        assert settled(loaded, layer) == "by policy: first able in the order, by token native"
        assert layer._forward_method.__self__ is layer
        assert layer._forward_method.__func__ is type(layer).forward_native  # what SGLang takes on a CPU
        assert layer not in {site.obj for site in loaded.binder._manager.sites()}


def test_a_bound_layer_runs_sglangs_method_when_the_policy_changes_to_it(
    loaded: Any, policy: Any, x: torch.Tensor
) -> None:
    turn, scale = rotary(), norm()
    for layer in (turn, scale):
        settled(loaded, layer)
    policy(prefer="native")
    positions, query, key = torch.tensor([3, 0, 63]), torch.randn(3, 64), torch.randn(3, 32)
    for ours, theirs in zip(
        turn(positions, query.clone(), key.clone()), native(turn, positions, query, key), strict=True
    ):
        assert torch.equal(ours, theirs)
    with torch.no_grad():
        assert torch.equal(scale(x), native(scale, x))
    assert {site.impl.impl_id for site in loaded.binder._manager.sites() if site.obj in (turn, scale)} == {"native"}


def test_sglangs_method_may_serve_some_numbers_of_tokens_only(loaded: Any, policy: Any, x: torch.Tensor) -> None:
    policy(prefer="reference", by_tokens={"rms_norm": {2: "native", "more": "reference"}})
    layer = norm()
    assert not settled(loaded, layer).is_native
    parts = settled(loaded, layer).leaves()
    with torch.no_grad():
        for tokens in (1, 2, 3, 5):
            assert torch.equal(layer(x[:tokens]), native(layer, x[:tokens]))
    assert [(part.label, part.impl.impl_id, part.calls) for part in parts] == [
        ("RMSNorm, up to 2 tokens", "native", 2),
        ("RMSNorm, more tokens", "reference", 2),
    ]
