# SPDX-License-Identifier: Apache-2.0
"""vLLM's layers for ``fl-dispatch tune``: as vLLM builds them, with what they run eagerly without us and with us.

In a compiled model vLLM runs plain PyTorch that Inductor fuses with what is around it; that has no time of its own, and the layer
says so where vLLM's platform compiles with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fl_dispatch import FrameworkLayer
from vllm_fl_adapter.bridges import find_bridge
from vllm_fl_adapter.layers import _unbound
from vllm_fl_adapter.replacements import Replacement


def framework_layer(op_name: str, sizes: Mapping[str, int], dtype: Any, device: str) -> FrameworkLayer:
    """For the entry-point group ``fl_dispatch.layers``: a layer of vLLM's for one operator, not bound by us.

    Args:
        op_name: a standard operator.
        sizes: ``hidden`` and ``head_size`` of the model, in elements.
        dtype: torch dtype of weights and inputs.
        device: where they lie.

    Raises:
        LookupError: vLLM has no layer for the operator that we know.
    """
    import torch
    from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config
    from vllm.platforms import current_platform

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        config = VllmConfig(compilation_config=CompilationConfig(mode=0, custom_ops=["all"]))
        with set_current_vllm_config(config), torch.device(device):
            layer = _layer(op_name, sizes, dtype)
            _as_in_a_worker(config)
    finally:
        torch.set_default_dtype(before)
    layer.to(device)
    method = layer._forward_method
    if isinstance(layer, Replacement):  # where the plug-in is loaded
        method = layer.__dict__["fl_native"]
        layer.fl_binder.forget(layer)
        layer.__class__ = layer.fl_vllm_class
    bridge, _ = find_bridge(type(layer))
    if bridge is None or bridge.outside(layer) is not None:
        raise LookupError(f"vLLM's {type(layer).__name__} is not {op_name} here")
    klass = type(layer)
    # What an implementation reads off a replacement.
    layer.__class__ = type(klass.__name__, (klass,), dict(bridge.attributes))
    return FrameworkLayer(
        layer,
        _unbound(method),
        lambda site: bridge.eager(layer, site, klass.forward_native),
        bridge.arguments,
        fused=current_platform.simple_compile_backend == "inductor",
    )


def _as_in_a_worker(config: Any) -> None:
    """What vLLM's worker settles for its process: which kernels its norms run (plain PyTorch where nobody says), and how."""
    priority = getattr(getattr(config, "kernel_config", None), "ir_op_priority", None)
    if priority is None:
        return
    import vllm.ir

    priority.set_default()
    wrap = getattr(config.compilation_config, "ir_enable_torch_wrap", None)
    if wrap is not None and hasattr(vllm.ir, "set_default_torch_wrap"):
        vllm.ir.set_default_torch_wrap(wrap)


def _layer(op_name: str, sizes: Mapping[str, int], dtype: Any) -> Any:
    from vllm.model_executor.layers import activation, layernorm
    from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding

    if op_name == "silu_and_mul":
        return activation.SiluAndMul()
    if op_name in ("gelu_and_mul", "gelu_tanh_and_mul"):
        return activation.GeluAndMul(approximate="none" if op_name == "gelu_and_mul" else "tanh")
    if op_name == "rms_norm":
        return layernorm.RMSNorm(sizes["hidden"])
    if op_name == "gemma_rms_norm":
        return layernorm.GemmaRMSNorm(sizes["hidden"])
    if op_name == "rotary_embedding":
        size = sizes["head_size"]
        return RotaryEmbedding(size, size, 8192, 10000, True, dtype)
    raise LookupError(f"vLLM has no layer for {op_name} that is known here")
