# SPDX-License-Identifier: Apache-2.0
"""RotaryEmbedding. Its subclasses that only compute another cos/sin cache are served by the same bridge."""

from __future__ import annotations

from typing import Any

from fl_dispatch import Site, rotary_arguments, standard_rotary
from vllm_fl_adapter.bridges.bridge import Bridge, Forward


def _eager(layer: Any, site: Site, native: Forward) -> Forward:
    head_size = layer.head_size
    interleaved = not layer.is_neox_style
    # nn.Module looks buffers up the slow way; the dictionary itself stays the same object for the layer's life.
    buffers = layer._buffers
    cache = cos = sin = None

    def forward(self: Any, positions: Any, query: Any, key: Any = None) -> Any:
        nonlocal cache, cos, sin
        if key is None:
            site.passed_on("no key")
            return native(self, positions, query, key)
        if buffers["cos_sin_cache"] is not cache:
            # Views, split again only when vLLM moved or cast its cache.
            cache = buffers["cos_sin_cache"]
            cos, sin = cache.chunk(2, dim=-1)
        if positions.dim() != 1:
            positions = positions.flatten()
        tokens = positions.shape[0]
        q = query.view(tokens, -1, head_size)
        k = key.view(tokens, -1, head_size)
        fn = site.fn
        try:
            new_q, new_k = fn(self, q, k, cos, sin, positions, interleaved, True)
        except Exception as error:  # noqa: BLE001  (the guard: judged in recover)
            new_q, new_k = site.recover(error, self, q, k, cos, sin, positions, interleaved, True)
        # What was rotated in place needs no further view, which costs the host as much as the checks of the call.
        return (
            query if new_q is q else new_q.reshape(query.shape),
            key if new_k is k else new_k.reshape(key.shape),
        )

    return forward


def _traced(layer: Any, call: Forward, native: Forward) -> Forward:
    head_size = layer.head_size
    interleaved = not layer.is_neox_style

    def forward(self: Any, positions: Any, query: Any, key: Any = None) -> Any:
        if key is None:
            return native(self, positions, query, key)
        cos, sin = self.cos_sin_cache.chunk(2, dim=-1)
        positions = positions.flatten()
        tokens = positions.shape[0]
        q = query.view(tokens, -1, head_size)
        k = key.view(tokens, -1, head_size)
        q, k = call(self, q, k, cos, sin, positions, interleaved, True)
        return q.reshape(query.shape), k.reshape(key.shape)

    return forward


def _outside(layer: Any) -> str | None:
    return None if "cos_sin_cache" in layer._buffers else "has no cos_sin_cache buffer"


BRIDGES = (
    Bridge(
        module="vllm.model_executor.layers.rotary_embedding.base",
        layer="RotaryEmbedding",
        operators=("rotary_embedding",),
        operator=lambda layer: "rotary_embedding",
        outside=_outside,
        eager=_eager,
        traced=_traced,
        standard=standard_rotary,
        arguments=rotary_arguments,
    ),
)
