# SPDX-License-Identifier: Apache-2.0
"""The token ``native`` in vLLM: the layer is a layer of vLLM again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("vllm")

import offered_layers
import torch
from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding
from vllm.plugins import load_general_plugins

from fl_dispatch import SelectionPolicy, default_manager
from fl_dispatch.tune.workloads import WORKLOADS
from vllm_fl_adapter import plugin
from vllm_fl_adapter.replacements import Replacement
from vllm_fl_adapter.tune import framework_layer

pytestmark = pytest.mark.vllm


def rope() -> Any:
    return RotaryEmbedding(16, 16, 64, 10000.0, True, torch.float32)


@pytest.fixture
def policy() -> Iterator[Any]:
    """``policy(prefer="native")`` is in force until the test ends."""
    load_general_plugins()
    manager = default_manager()
    before = manager.policy
    with set_current_vllm_config(VllmConfig(compilation_config=CompilationConfig(custom_ops=["none"]))):
        yield lambda **wishes: manager.configure(policy=SelectionPolicy(**wishes))
    manager.configure(policy=before)


def binder() -> Any:
    here = plugin.installed()
    assert here is not None
    return here.binder


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("make", [lambda: RMSNorm(32), SiluAndMul, rope])
def test_a_layer_whose_native_method_is_preferred_is_vllms_own(make: Any, compiled: bool, policy: Any) -> None:
    policy(prefer="native")
    layer = make()
    replacement = type(layer)
    assert issubclass(replacement, Replacement)
    binder().settle(layer, compiled=compiled)
    assert type(layer) is replacement.fl_vllm_class
    running = layer._forward_method
    # What vLLM takes with custom_ops=none; it compiles an activation by itself.
    assert getattr(running, "_torchdynamo_orig_callable", running) == layer.forward_native
    assert binder()._left[layer][2] == "by policy: first able in the order, by token native"


def test_a_bound_layer_runs_vllms_method_when_the_policy_changes_to_it(policy: Any) -> None:
    layer = rope()
    binder().settle(layer)
    policy(prefer="native")
    (site,) = binder().sites_of([layer])
    assert site.is_native
    positions, query, key = torch.tensor([3, 0, 63]), torch.randn(3, 64), torch.randn(3, 32)
    wanted = layer.fl_vllm_class.forward_native(layer, positions, query.clone(), key.clone())
    for ours, theirs in zip(layer(positions, query.clone(), key.clone()), wanted, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("bound", [False, True], ids=["own method", "bound"])
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_tune_measures_what_computes_the_same_as_the_reference(workload: Any, bound: bool) -> None:
    offered_layers.check(framework_layer, workload, bound)


def test_a_layer_for_tune_waits_for_no_model() -> None:
    before = binder().waiting()
    layer = framework_layer("rms_norm", {"hidden": 64, "head_size": 64}, torch.float32, "cpu").layer
    assert binder().waiting() == before
    assert "fl_native" not in vars(layer)


@pytest.mark.parametrize(("backend", "fused"), [("inductor", True), ("eager", False)])
def test_a_layer_for_tune_is_fused_in_graphs_where_the_platform_compiles_with_inductor(
    monkeypatch: pytest.MonkeyPatch, backend: str, fused: bool
) -> None:
    from vllm.platforms import current_platform

    monkeypatch.setattr(current_platform, "simple_compile_backend", backend)
    assert framework_layer("rms_norm", {"hidden": 64, "head_size": 64}, torch.float32, "cpu").fused is fused


def test_a_layer_for_tune_says_how_vllm_rounds_as_a_replacement_does() -> None:
    offered = framework_layer("rms_norm", {"hidden": 64, "head_size": 64}, torch.float32, "cpu")
    assert offered.layer.fl_wishes == ("cast_x_before_out_mul", "cast_x_to_weight_dtype")
    assert offered.layer.cast_x_before_out_mul is True


def test_tune_measures_a_norm_with_the_kernels_that_a_worker_settles(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.ir import ops

    monkeypatch.setattr(ops.rms_norm, "_priority_impls", [])
    framework_layer("rms_norm", {"hidden": 64, "head_size": 64}, torch.float32, "cpu")
    assert ops.rms_norm.get_priority() == VllmConfig().kernel_config.ir_op_priority.rms_norm
