# SPDX-License-Identifier: Apache-2.0
"""RotaryEmbedding and those of its subclasses that only compute another cos/sin cache."""

from __future__ import annotations

from typing import Any

from fl_dispatch import Site, rotary_arguments, standard_rotary
from sglang_fl.bridges.bridge import Bridge, Forward


def _forward(layer: Any, site: Site, native: Forward) -> Forward:
    head_size = layer.head_size
    interleaved = not layer.is_neox_style
    cache = layer._buffers["cos_sin_cache"]
    # One value, so that another thread never sees a cache with the halves of another one.
    split = (cache, *cache.chunk(2, dim=-1))

    def dispatched(
        layer: Any, positions: Any, query: Any, key: Any, offsets: Any = None, fused_set_kv_buffer_arg: Any = None
    ) -> Any:
        nonlocal split
        if fused_set_kv_buffer_arg is not None or key is None or positions.dim() != 1:
            site.passed_on(
                "key and value written to the cache in the same call"
                if fused_set_kv_buffer_arg is not None
                else ("no key" if key is None else f"{positions.dim()}-D positions")
            )
            return native(layer, positions, query, key, offsets, fused_set_kv_buffer_arg)
        cache, cos, sin = split
        # Straight from the dictionary: nn.Module looks an attribute that is a buffer up the slow way.
        current = layer._buffers["cos_sin_cache"]
        if current is not cache:
            # Views, split again only when SGLang grew, moved or cast its cache.
            cos, sin = current.chunk(2, dim=-1)
            split = (current, cos, sin)
        if offsets is not None:
            positions = positions + offsets
        tokens = positions.shape[0]
        if tokens == 0:
            return query, key
        q = query.view(tokens, -1, head_size)
        k = key.view(tokens, -1, head_size)
        fn = site.fn
        try:
            new_q, new_k = fn(layer, q, k, cos, sin, positions, interleaved, True)
        except Exception as error:  # noqa: BLE001  (the guard: judged in recover)
            new_q, new_k = site.recover(error, layer, q, k, cos, sin, positions, interleaved, True)
        # What was rotated in place needs no further view, which costs the host as much as the checks of the call.
        return (
            query if new_q is q else new_q.reshape(query.shape),
            key if new_k is k else new_k.reshape(key.shape),
        )

    return dispatched


def _outside(layer: Any) -> str | None:
    if "cos_sin_cache" not in layer._buffers:
        return "has no cos_sin_cache buffer"
    return None


BRIDGES = (
    Bridge(
        layer="sglang.srt.layers.rotary_embedding.base.RotaryEmbedding",
        operators=("rotary_embedding",),
        operator=lambda layer: "rotary_embedding",
        outside=_outside,
        make=_forward,
        parameters=frozenset({"positions", "query", "key", "offsets", "fused_set_kv_buffer_arg"}),
        standard=standard_rotary,
        arguments=rotary_arguments,
    ),
)
