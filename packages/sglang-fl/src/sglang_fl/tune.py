# SPDX-License-Identifier: Apache-2.0
"""SGLang's layers for ``fl-dispatch tune``: as SGLang builds them, with what they would run without us and with us."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fl_dispatch import FrameworkLayer
from sglang_fl.bridges import find_bridge
from sglang_fl.layers import bound_function, unbound
from sglang_fl.seam import find_seam


def framework_layer(op_name: str, sizes: Mapping[str, int], dtype: Any, device: str) -> FrameworkLayer:
    """For the entry-point group ``fl_dispatch.layers``: a layer of SGLang's for one operator, not bound by us.

    Args:
        op_name: a standard operator.
        sizes: ``hidden`` and ``head_size`` of the model, in elements.
        dtype: torch dtype of weights and inputs.
        device: where they lie.

    Raises:
        LookupError: SGLang has no layer for the operator that we know.
    """
    import torch

    seam = find_seam()
    if not seam.lazy:
        _publish_defaults(device)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            layer = _layer(op_name, sizes, dtype)
    finally:
        torch.set_default_dtype(before)
    layer.to(device)
    bridge, _ = find_bridge(type(layer))
    if bridge is None or bridge.outside(layer) is not None:
        raise LookupError(f"SGLang's {type(layer).__name__} is not {op_name} here")
    method = layer._forward_method if layer._forward_method is not None else layer._resolve_forward_method()
    return FrameworkLayer(
        layer, unbound(method), lambda site: bound_function(bridge, layer, site, method), bridge.arguments
    )


def _layer(op_name: str, sizes: Mapping[str, int], dtype: Any) -> Any:
    from sglang.srt.layers import activation, layernorm
    from sglang.srt.layers.rotary_embedding.base import RotaryEmbedding

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
    raise LookupError(f"SGLang has no layer for {op_name} that is known here")


def _publish_defaults(device: str) -> None:
    """The server's arguments, which layers of these versions ask for while they are constructed; no model is looked at."""
    from sglang.srt import server_args

    arguments = object.__new__(server_args.ServerArgs)
    for field in dataclasses.fields(server_args.ServerArgs):
        made = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        object.__setattr__(arguments, field.name, None if made is dataclasses.MISSING else made)
    object.__setattr__(arguments, "device", device)
    try:
        from sglang.srt.runtime_context import publish
    except ImportError:
        server_args.set_global_server_args_for_scheduler(arguments)
    else:
        publish(arguments, role="test")
