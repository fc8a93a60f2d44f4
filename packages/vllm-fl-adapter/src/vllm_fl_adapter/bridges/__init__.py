# SPDX-License-Identifier: Apache-2.0
"""Bridges: for each vLLM layer class, its operator, when to leave it to vLLM, and the translation of its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vllm_fl_adapter.bridges.activation import BRIDGES as _ACTIVATION
from vllm_fl_adapter.bridges.bridge import Bridge as Bridge
from vllm_fl_adapter.bridges.bridge import Forward as Forward
from vllm_fl_adapter.bridges.norm import BRIDGES as _NORM
from vllm_fl_adapter.bridges.rotary import BRIDGES as _ROTARY

BRIDGES: tuple[Bridge, ...] = (*_ACTIVATION, *_NORM, *_ROTARY)
_BY_CLASS: Mapping[tuple[str, str], Bridge] = {(bridge.module, bridge.layer): bridge for bridge in BRIDGES}

#: Layer class names accepted in the white and black list, with the operators they stand for.
OPERATOR_ALIASES: Mapping[str, tuple[str, ...]] = {bridge.layer: bridge.operators for bridge in BRIDGES}

#: vLLM's layers that compute an operator's function in a way of their own, by the class they descend from: left to vLLM,
#: but named in the report.
_RELATIVES: Mapping[tuple[str, str], str] = {
    ("vllm.model_executor.layers.rotary_embedding.base", "RotaryEmbeddingBase"): "rotary_embedding",
    ("vllm.model_executor.hw_agnostic.layers.layernorm", "RMSNorm"): "rms_norm",
    ("vllm.model_executor.hw_agnostic.layers.activation", "SiluAndMul"): "silu_and_mul",
}


@dataclass(frozen=True)
class Left:
    """Why a layer class is left to vLLM."""

    operator: str
    text: str


def find_bridge(layer_class: type) -> tuple[Bridge | None, Left | None]:
    """The bridge of a layer class, found through its ancestors.

    A parent's bridge serves a subclass only if no class between them overrides a ``forward*`` method, because what the
    subclass computes then is its own matter; such a class comes back with the reason instead.
    """
    own: list[str] = []
    for klass in layer_class.__mro__:
        place = (klass.__module__, klass.__name__)
        bridge = _BY_CLASS.get(place)
        if bridge is not None:
            if own:
                return None, Left(bridge.operators[0], f"overrides {', '.join(own)} of {klass.__name__}")
            return bridge, None
        own += [f"{klass.__name__}.{name}" for name in vars(klass) if name.startswith("forward")]
        if place in _RELATIVES:
            return None, Left(_RELATIVES[place], f"has a forward of its own: {', '.join(own)}")
    return None, None
