# SPDX-License-Identifier: Apache-2.0
"""vLLM's layer classes in this process, replaced by the plug-in: what is replaced, what it computes, what is left alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch
from rotation import check_results
from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.custom_op import op_registry_oot
from vllm.model_executor.layers import rotary_embedding as rotary
from vllm.model_executor.layers.activation import GeluAndMul, SiluAndMul
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm
from vllm.plugins import load_general_plugins

import vllm_fl_adapter
from fl_dispatch import BackendImplKind, OpImpl, OpManager, OpRegistry, SeamError, default_manager
from fl_dispatch.ops import load_spec
from vllm_fl_adapter import plugin, versions
from vllm_fl_adapter.replacements import Replacement

pytestmark = pytest.mark.vllm

ROTARY = {
    "RotaryEmbedding",
    "DynamicNTKAlphaRotaryEmbedding",
    "DynamicNTKScalingRotaryEmbedding",
    "Gemma4RotaryEmbedding",
    "LinearScalingRotaryEmbedding",
    "Llama3RotaryEmbedding",
    "NTKScalingRotaryEmbedding",
    "YaRNScalingRotaryEmbedding",
}
REPLACED = {"RMSNorm", "GemmaRMSNorm", "SiluAndMul", "GeluAndMul", *ROTARY}
#: In earlier versions only.
REPLACED_IN_SOME = {"TeleChat3RoPEScaledRotaryEmbedding"}


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """As vLLM does it."""
    load_general_plugins()
    default_manager().watch(calls=True)  # as with VLLM_FL_REPORT


@contextlib.contextmanager
def custom_ops(*names: str) -> Iterator[None]:
    with set_current_vllm_config(VllmConfig(compilation_config=CompilationConfig(custom_ops=list(names)))):
        yield


def ours() -> plugin.Installed:
    here = plugin.installed()
    assert here is not None
    return here


def made(make: Any) -> tuple[Any, Any]:
    """The same layer twice: a replacement, and vLLM's own."""
    with custom_ops("none"):
        layer = make()
        present = {name: op_registry_oot.pop(name) for name in tuple(op_registry_oot)}
        try:
            native = make()
        finally:
            op_registry_oot.update(present)
    assert isinstance(layer, Replacement)
    assert not isinstance(native, Replacement)
    return layer, native


def reason(layer: Any) -> str:
    """Why the layer was left to vLLM."""
    return str(ours().binder._left[layer][2])


def test_exactly_the_classes_that_map_to_an_operator_are_replaced() -> None:
    found = {name for name, klass in op_registry_oot.items() if issubclass(klass, Replacement)}
    assert found - REPLACED_IN_SOME == REPLACED


def test_loading_again_changes_nothing() -> None:
    before = dict(op_registry_oot)
    vllm_fl_adapter.load_plugin()
    vllm_fl_adapter.load_plugin()
    assert dict(op_registry_oot) == before


def test_a_replacement_has_the_name_and_the_init_of_the_class_it_replaces() -> None:
    for name, klass in op_registry_oot.items():
        parent = klass.fl_vllm_class
        assert (klass.__name__, klass.name) == (name, parent.name)
        assert klass.__init__ is parent.__init__
    assert op_registry_oot["RMSNorm"].name == "rms_norm"


def test_one_forward_serves_every_platform() -> None:
    for klass in op_registry_oot.values():
        methods = {getattr(klass, f"forward_{kind}") for kind in ("oot", "cpu", "cuda", "xpu", "hip")}
        assert methods == {Replacement.fl_forward}


def rope(kind: str, **parameters: Any) -> Any:
    settings = {"rope_type": kind, "rope_theta": 10000, **parameters}

    def make() -> Any:
        rotary._ROPE_DICT.clear()  # vLLM shares equal ones
        return rotary.get_rope(64, 128, rope_parameters=settings, dtype=torch.float32)

    return make


LAYERS = {
    "RMSNorm": (lambda: RMSNorm(64), "norm"),
    "GemmaRMSNorm": (lambda: GemmaRMSNorm(64), "norm"),
    "SiluAndMul": (lambda: SiluAndMul(), "activation"),
    "GeluAndMul none": (lambda: GeluAndMul("none"), "activation"),
    "GeluAndMul tanh": (lambda: GeluAndMul("tanh"), "activation"),
}
ROPES = {
    "RotaryEmbedding": rope("default"),
    "RotaryEmbedding, half of each head": rope("default", partial_rotary_factor=0.5),
    "LinearScalingRotaryEmbedding": rope("linear", factor=2.0),
    "DynamicNTKScalingRotaryEmbedding": rope("dynamic", factor=2.0),
    "Llama3RotaryEmbedding": rope(
        "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
    ),
    "YaRNScalingRotaryEmbedding": rope("yarn", factor=2.0, original_max_position_embeddings=64),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", LAYERS)
def test_reference_is_bit_equal_to_vllm(name: str, dtype: torch.dtype) -> None:
    make, kind = LAYERS[name]
    layer, native = made(make)
    for one in (layer, native):
        one.to(dtype)
    torch.manual_seed(0)
    if kind == "norm":
        layer.weight.data.normal_()
        native.weight.data.copy_(layer.weight.data)
    x, residual = torch.randn(5, 64, dtype=dtype), torch.randn(5, 64, dtype=dtype)
    assert torch.equal(layer(x.clone()), native.forward_native(x.clone()))
    if kind == "norm":
        for got, wanted in zip(
            layer(x.clone(), residual.clone()), native.forward_native(x.clone(), residual.clone()), strict=True
        ):
            assert torch.equal(got, wanted)


@pytest.mark.parametrize("name", ROPES)
def test_rotary_reference_is_bit_equal_to_vllm(name: str) -> None:
    layer, native = made(ROPES[name])
    assert type(native).__name__ == name.partition(",")[0]
    positions = torch.tensor([0, 5, 5, 99])
    query, key = torch.randn(4, 3 * 64), torch.randn(4, 64)
    for got, wanted in zip(
        layer(positions, query.clone(), key.clone()),
        native.forward_native(positions, query.clone(), key.clone()),
        strict=True,
    ):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("inplace", [True, False])
def test_what_was_rotated_in_place_is_handed_back_and_what_was_not_in_its_shape(inplace: bool) -> None:
    layer, native = made(ROPES["RotaryEmbedding"])
    ours().binder.settle(layer)
    (site,) = ours().binder.sites_of([layer])
    positions, query, key = torch.tensor([0, 5, 99]), torch.randn(3, 3 * 64), torch.randn(3, 64)
    wanted = native.forward_native(positions, query.clone(), key.clone())
    check_results(layer, site, (positions, query, key), wanted, inplace)


def test_calls_are_counted_and_a_call_by_name_is_dispatched_too() -> None:
    layer, _ = made(lambda: RMSNorm(64))
    x = torch.randn(2, 64)
    layer(x)
    layer.forward_cuda(x)
    layer.forward_cpu(x)
    (site,) = ours().binder.sites_of([layer])
    assert site.calls == 3


@pytest.mark.parametrize(
    ("make", "op", "field"),
    [
        (lambda: RMSNorm(8), "rms_norm", "cast_x_before_out_mul"),
        (lambda: GemmaRMSNorm(8), "gemma_rms_norm", "round_sum_before_norm"),
    ],
    ids=["RMSNorm", "GemmaRMSNorm"],
)
def test_how_vllm_rounds_is_a_wish_and_no_limit(make: Any, op: str, field: str) -> None:
    layer, _ = made(make)
    other = not getattr(layer, field)
    impl = OpImpl(
        op,
        "vendor.rounds",
        BackendImplKind.VENDOR,
        load_spec(op).reference,
        vendor="rounds",
        honours={field: frozenset({other})},
        mutates=frozenset(),
    )
    registry = OpRegistry()
    registry.register(impl)
    site = OpManager(registry, device_type="cpu").bind(op, layer)
    assert site.impl is impl
    assert site.selection is not None
    assert site.selection.why.endswith(f"honours {field} only as {other}, this layer has {not other}")


def test_a_call_without_a_key_goes_to_vllm() -> None:
    layer, native = made(rope("default"))
    positions, query = torch.tensor([1, 2]), torch.randn(2, 64)
    rotated, key = layer(positions, query.clone())
    assert key is None
    assert torch.equal(rotated, native.forward_native(positions, query.clone())[0])
    (site,) = ours().binder.sites_of([layer])
    assert site.calls == 0
    assert site.fallbacks == {("reference", "the framework, no key"): 1}


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda: RMSNorm(64, var_hidden_size=32), "variance_size_override=32"),
        (lambda: RMSNorm(64, has_weight=False), "has no weight"),
    ],
)
def test_a_layer_outside_the_contract_is_a_layer_of_vllm_again(make: Any, wanted: str) -> None:
    layer, native = made(make)
    x = torch.randn(3, 64)
    assert torch.equal(layer(x.clone()), native(x.clone()))
    assert type(layer) is RMSNorm
    assert reason(layer) == wanted
    assert torch.equal(layer(x.clone()), native(x.clone()))


def test_minus_in_custom_ops_leaves_the_layer_to_vllm() -> None:
    with custom_ops("all", "-rms_norm"):
        layer, other = RMSNorm(64), SiluAndMul()
    for one in (layer, other):
        ours().binder.settle(one)  # as the worker does when the model is loaded
    assert type(layer) is RMSNorm
    assert "-rms_norm in custom_ops" in reason(layer)
    assert isinstance(other, Replacement)


def test_plus_in_custom_ops_names_the_replacement() -> None:
    with custom_ops("none", "+rms_norm"):
        assert RMSNorm(64).enabled()
        assert op_registry_oot["RMSNorm"].enabled()


def test_plus_and_minus_at_once_are_refused_as_by_vllm() -> None:
    with custom_ops("none"):
        from vllm.config import get_cached_compilation_config

        get_cached_compilation_config().custom_ops[:] = ["none", "+rms_norm", "-rms_norm"]
        with pytest.raises(ValueError, match="cannot both enable and disable"):
            RMSNorm(64)


def test_batch_invariant_mode_keeps_the_kernels_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, _ = made(lambda: SiluAndMul())
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    layer(torch.randn(2, 8))
    assert type(layer) is SiluAndMul
    assert reason(layer) == "VLLM_BATCH_INVARIANT is set"


def test_layers_with_a_forward_of_their_own_are_named_as_left() -> None:
    with custom_ops("none"):
        layer = rotary.MRotaryEmbedding(64, 64, 128, 10000.0, True, torch.float32, mrope_section=[8, 12, 12])
    assert not isinstance(layer, Replacement)
    ours().binder.note_left([layer])
    assert reason(layer).startswith("has a forward of its own: MRotaryEmbedding.forward_native")


@pytest.mark.parametrize("version", ["0.8.5", "0.25.0"])
def test_an_unsupported_version_stops_with_the_tested_range(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "_installed", None)
    monkeypatch.setattr(plugin, "installed_version", lambda: version)
    with pytest.raises(SeamError, match=versions.tested_range()):
        vllm_fl_adapter.load_plugin()


def test_a_version_between_the_tested_ones_is_untested_and_starts() -> None:
    assert versions.verdict("0.25.1") is None
    assert not versions.too_old("0.26.0")
    assert "not a version vllm-fl-adapter was tested with" in str(versions.verdict("0.26.0"))


def test_the_hash_that_names_cached_graphs_depends_on_the_fingerprint() -> None:
    from vllm.compilation.caching import aot_compile_hash_factors

    one, same, other = (VllmConfig(additional_config={"fl_dispatch": value}) for value in ("a", "a", "b"))
    assert aot_compile_hash_factors(one) == aot_compile_hash_factors(same) != aot_compile_hash_factors(other)


@pytest.fixture
def ir_provider() -> Iterator[Any]:
    """Bound as in a worker whose order of providers names ours."""
    from types import SimpleNamespace

    pytest.importorskip("vllm.ir", reason="this vLLM has no vllm.ir")
    orders = SimpleNamespace(rms_norm=["fl", "native"], fused_add_rms_norm=["fl", "native"])
    provider = ours().ir_provider
    assert provider.register() is None
    provider.bind(SimpleNamespace(kernel_config=SimpleNamespace(ir_op_priority=orders)))
    yield provider
    provider._bound.clear()  # a site that lives on would have to follow the policies of other tests


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_ir_provider_is_bit_equal_to_vllm(dtype: torch.dtype, ir_provider: Any) -> None:
    from vllm.ir import ops

    x, residual, weight = torch.randn(5, 64, dtype=dtype), torch.randn(5, 64, dtype=dtype), torch.randn(64, dtype=dtype)
    for function, arguments in (
        (ops.rms_norm, (x, weight, 1e-5)),
        (ops.fused_add_rms_norm, (x, residual, weight, 1e-5)),
    ):
        with function.set_priority(["native"]):
            wanted = function(*arguments)
        with function.set_priority(["fl", "native"]):
            assert function.dispatch(*arguments).provider == "fl"
            got = function(*arguments)
        assert torch.equal(torch.stack([*got]), torch.stack([*wanted]))
    assert {name: site.calls for name, (site, _) in ir_provider._bound.items()} == {
        "rms_norm": 1,
        "fused_add_rms_norm": 1,
    }


def test_the_ir_provider_leaves_calls_outside_the_contract_to_the_next(ir_provider: Any) -> None:
    from vllm.ir import ops

    x = torch.randn(5, 64)
    with ops.rms_norm.set_priority(["fl", "native"]):
        assert ops.rms_norm.dispatch(x, None, 1e-5).provider == "native"
        assert ops.rms_norm.dispatch(x, torch.ones(64), 1e-5, 32).provider == "native"
