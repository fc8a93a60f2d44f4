# SPDX-License-Identifier: Apache-2.0
"""SGLang Diffusion's layers: the operator of each, when to leave one to SGLang, and the translation of its arguments.

They have the names and the fields of SGLang's language-model layers, so where the arguments agree the translation is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fl_dispatch import Site, standard_rotary
from sglang_fl.bridges import BRIDGES as _SRT
from sglang_fl.bridges.bridge import Bridge, Forward

_LAYERS = "sglang.multimodal_gen.runtime.layers"


def _rotary_forward(layer: Any, site: Site, native: Forward) -> Forward:
    interleaved = not layer.is_neox_style
    head_size = layer.head_size
    cache = layer._buffers["cos_sin_cache"]
    # One value, so that another thread never sees a cache with the halves of another one.
    split = (cache, *cache.chunk(2, dim=-1))

    def dispatched(
        layer: Any,
        positions: Any = None,
        query: Any = None,
        key: Any = None,
        *rest: Any,
        offsets: Any = None,
        **more: Any,
    ) -> Any:
        nonlocal split
        # A cache, cos and sin or an offset that come with the call are not looked at by a layer with a cache of its own.
        if positions is None or query is None or key is None:
            site.passed_on("no positions" if positions is None else "no query or no key")
            return native(layer, positions, query, key, *rest, offsets=offsets, **more)
        cache, cos, sin = split
        current = layer._buffers["cos_sin_cache"]
        if current is not cache:
            cos, sin = current.chunk(2, dim=-1)
            split = (current, cos, sin)
        if offsets is not None:
            positions = positions + offsets
        positions = positions.flatten()
        tokens = positions.shape[0]
        if tokens == 0:
            return query, key
        q = query.reshape(tokens, -1, head_size)
        k = key.reshape(tokens, -1, head_size)
        fn = site.fn
        # Not in place: SGLang's own method writes to neither, and callers may go on with what they passed.
        try:
            q, k = fn(layer, q, k, cos, sin, positions, interleaved, False)
        except Exception as error:  # noqa: BLE001  (the guard: judged in recover)
            q, k = site.recover(error, layer, q, k, cos, sin, positions, interleaved, False)
        return q.reshape(query.shape), k.reshape(key.shape)

    return dispatched


def _outside_rotary(layer: Any) -> str | None:
    if layer.use_precomputed_cache:
        return None
    return "takes cos and sin with each call and keeps no cache: SGLang's own method"


def _like(name: str) -> Bridge:
    """The bridge of SGLang's language-model layer of that name in the module of that name."""
    return replace(_SRT[f"sglang.srt.layers.{name}"], layer=f"{_LAYERS}.{name}")


#: Dotted layer class to bridge.
BRIDGES: Mapping[str, Bridge] = {
    bridge.layer: bridge
    for bridge in (
        _like("activation.SiluAndMul"),
        _like("activation.GeluAndMul"),
        _like("layernorm.RMSNorm"),
        Bridge(
            layer=f"{_LAYERS}.rotary_embedding.base.RotaryEmbedding",
            operators=("rotary_embedding",),
            operator=lambda layer: "rotary_embedding",
            outside=_outside_rotary,
            make=_rotary_forward,
            parameters=frozenset(
                {
                    "positions",
                    "query",
                    "key",
                    "position_offset",
                    "cos",
                    "sin",
                    "complex_freqs",
                    "cos_sin_cache",
                    "offsets",
                }
            ),
            standard=standard_rotary,
        ),
    )
}

#: Layers that no standard operator computes; they run SGLang's method, and the report says so.
LEFT: Mapping[str, str] = {
    f"{_LAYERS}.{name}": reason
    for name, reason in {
        "layernorm.RMSNormNoWeight": "has no weight",
        "layernorm.LayerNorm": "subtracts the mean: no standard operator",
        "layernorm.FP32LayerNorm": "subtracts the mean: no standard operator",
        "layernorm.LayerNormScaleShift": "norm, scale and shift in one: no standard operator",
        "layernorm.RMSNormScaleShift": "norm, scale and shift in one: no standard operator",
        "layernorm.ScaleResidualLayerNormScaleShift": "gate, residual, norm, scale and shift in one: no standard operator",
        "layernorm.ScaleResidualRMSNormScaleShift": "gate, residual, norm, scale and shift in one: no standard operator",
        "fused_scale_shift_gate.FusedLayerNormScaleShiftGateSelect01": "norm, scale, shift and gate in one: no standard operator",
        "fused_scale_shift_gate.FusedResidualLayerNormScaleShiftGateSelect01": (
            "residual, norm, scale, shift and gate in one: no standard operator"
        ),
        "elementwise.MulAdd": "a product and a sum: no standard operator",
        "activation.NewGELU": "no gate: no standard operator",
        "activation.QuickGELU": "no gate: no standard operator",
    }.items()
}
