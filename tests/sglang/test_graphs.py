# SPDX-License-Identifier: Apache-2.0
"""Real SGLang layers under ``torch.compile``, and what SGLang's settings say about graphs."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from real_layers import load, native, norm, rotary, settled
from torch._dynamo.testing import CompileCounter

from fl_dispatch import FrozenSelectionError, OpImpl, OpManager, SelectionPolicy, default_manager
from fl_dispatch.ops import load_spec
from fl_dispatch.types import BackendImplKind
from sglang_fl.graphs import GraphModes, graph_modes

pytestmark = pytest.mark.sglang


def _untraceable(op_name: str, reads: set[str]) -> OpImpl:
    """Computes as the reference does, with something in it that Dynamo cannot look into, as kernels have."""
    reference = load_spec(op_name).reference

    @functools.wraps(reference)
    def function(obj: Any, *args: Any) -> Any:
        with open("/dev/null", "rb") as stream:
            stream.read()
        return reference(obj, *args)

    return OpImpl(
        op_name,
        "vendor.opaque",
        BackendImplKind.VENDOR,
        function,
        vendor="opaque",
        mutates=frozenset(),
        reads=frozenset(reads),
        capture_safe=True,
        available=lambda: _wanted or "only here",
    )


_wanted = False


@pytest.fixture(scope="module")
def loaded() -> Iterator[Any]:
    """SGLang's loader has run; the vendor ``opaque`` is preferred, and layers may be compiled."""
    global _wanted
    here, manager = load(), default_manager()
    before, _wanted = manager.policy, True
    for op_name, reads in (
        ("rms_norm", {"weight", "variance_epsilon"}),
        ("silu_and_mul", set()),
        ("rotary_embedding", set()),
    ):
        manager.registry.register(_untraceable(op_name, reads))
    manager.configure(policy=SelectionPolicy(prefer="vendor"), compiled=True)
    yield here
    manager.configure(policy=before, compiled=False)
    _wanted = False
    manager.reset()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _silu() -> Any:
    from sglang.srt.layers.activation import SiluAndMul

    return SiluAndMul()


def test_compiled_layers_hold_the_chosen_implementation_in_one_graph_for_all_sizes(loaded: Any) -> None:
    first, second, act, rope = norm(), norm(), _silu(), rotary()
    sites = [settled(loaded, layer) for layer in (first, second, act, rope)]
    assert {site.impl.impl_id for site in sites} == {"vendor.opaque"}
    calls = [site.calls for site in sites]

    def block(x: torch.Tensor, positions: torch.Tensor) -> Any:
        residual = x
        x = first._forward_method(x)
        x, residual = second._forward_method(x, residual)
        q, k = rope._forward_method(positions, x, x[:, :16])
        return act._forward_method(torch.cat([q, q], -1)), k, residual

    counter = CompileCounter()
    compiled = torch.compile(block, backend=counter, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for tokens in (5, 7, 33):
            x = torch.randn(tokens, 32)
            got, wanted = compiled(x.clone(), torch.arange(tokens)), block(x.clone(), torch.arange(tokens))
            for ours, theirs in zip(got, wanted, strict=True):
                torch.testing.assert_close(ours, theirs)
    assert counter.frame_count == 1
    assert [site.graphs for site in sites] == [1, 1, 1, 1]
    assert [site.calls - before for site, before in zip(sites, calls, strict=True)] == [3, 3, 3, 3]  # eager ones only


def test_layers_keep_the_chosen_implementation_when_sglang_compiles_them(loaded: Any) -> None:
    layer, x = norm(), torch.randn(5, 32)
    site = settled(loaded, layer)
    method = layer._forward_method
    layer.enter_torch_compile(num_tokens=1)
    layer.enter_torch_compile(num_tokens=1)
    with torch.no_grad():
        assert torch.equal(layer(x), native(layer, x))
        assert (layer.is_torch_compile, site.calls) == (True, 1)
        layer.leave_torch_compile()
        layer(x)
    assert (layer.is_torch_compile, site.calls, layer._forward_method) == (False, 2, method)


def test_a_layer_left_to_sglang_runs_its_native_method_when_sglang_compiles_it(loaded: Any) -> None:
    layer = norm(fp32_residual=True)
    assert settled(loaded, layer) == "fp32_residual keeps the residual in float32"
    layer._forward_method = layer.forward_cuda  # as on a device
    layer.enter_torch_compile(num_tokens=1)
    assert layer._forward_method == layer.forward_native
    layer.leave_torch_compile()
    assert layer._forward_method == layer.forward_cuda


def _phases(decode: str, prefill: str) -> Any:
    return SimpleNamespace(
        cuda_graph_config=SimpleNamespace(
            decode=SimpleNamespace(backend=decode), prefill=SimpleNamespace(backend=prefill)
        )
    )


@pytest.mark.parametrize(
    ("settings", "device", "captured", "compiled"),
    [
        ({"disable_cuda_graph": False, "disable_piecewise_cuda_graph": True}, "cuda", True, None),
        ({"disable_cuda_graph": True, "disable_piecewise_cuda_graph": True}, "cuda", False, None),
        ({"disable_cuda_graph": False, "disable_piecewise_cuda_graph": False}, "cuda", True, "piecewise CUDA graphs"),
        ({"disable_cuda_graph": False, "disable_piecewise_cuda_graph": False}, "cpu", False, None),
        ({"disable_cuda_graph": False, "enable_torch_compile": True}, "cuda", True, "--enable-torch-compile"),
        ({"disable_cuda_graph": True, "enable_torch_compile": True}, "cpu", False, "--enable-torch-compile"),
        ({"disable_cuda_graph": True}, "cuda", False, None),
        (vars(_phases("full", "breakable")), "cuda", True, None),
        ({"cuda_graph_config": SimpleNamespace(decode=SimpleNamespace(backend="disabled"))}, "cuda", False, None),
        (vars(_phases("disabled", "tc_piecewise")), "cuda", True, "piecewise CUDA graphs"),
        (vars(_phases("disabled", "disabled")), "npu", False, None),
    ],
)
def test_graphs_are_known_from_the_settings_of_every_version(
    settings: dict[str, Any], device: str, captured: bool, compiled: str | None
) -> None:
    assert graph_modes(SimpleNamespace(**settings), device) == GraphModes(captured, compiled)


@pytest.mark.parametrize(
    ("modes", "frozen"),
    [
        (GraphModes(True, None), True),
        (GraphModes(False, "--enable-torch-compile"), True),
        (GraphModes(False, None), False),
    ],
)
def test_the_selection_cannot_change_once_a_graph_holds_it(modes: GraphModes, frozen: bool) -> None:
    manager = OpManager(device_type="cpu")
    modes.freeze(manager)
    if frozen:
        with pytest.raises(FrozenSelectionError, match="a graph that SGLang captured or compiled holds the present"):
            manager.configure(device_type="cpu")
    else:
        manager.configure(device_type="cpu")


def test_settings_of_the_installed_sglang_are_understood(loaded: Any) -> None:
    from sglang.srt.server_args import ServerArgs

    arguments = ServerArgs(model_path=os.environ["FL_TEST_MODEL"], device="cpu")
    assert hasattr(arguments, "cuda_graph_config") or hasattr(arguments, "disable_piecewise_cuda_graph")
    assert graph_modes(arguments, "cpu") == GraphModes(captured=False, compiled=None)
