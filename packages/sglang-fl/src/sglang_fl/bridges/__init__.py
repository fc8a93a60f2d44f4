# SPDX-License-Identifier: Apache-2.0
"""Bridges: for each SGLang layer class, its operator, when to leave it to SGLang, and the translation of its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sglang_fl.bridges.activation import BRIDGES as _ACTIVATION
from sglang_fl.bridges.bridge import Bridge
from sglang_fl.bridges.norm import BRIDGES as _NORM
from sglang_fl.bridges.rotary import BRIDGES as _ROTARY

#: Dotted layer class to bridge.
BRIDGES: Mapping[str, Bridge] = {bridge.layer: bridge for bridge in (*_ACTIVATION, *_NORM, *_ROTARY)}

#: Layer class names accepted in the white and black list, with the operators they stand for.
OPERATOR_ALIASES: Mapping[str, tuple[str, ...]] = {
    bridge.layer.rpartition(".")[2]: bridge.operators for bridge in BRIDGES.values()
}


@dataclass(frozen=True)
class Left:
    """Why a subclass of a bridged class is left to SGLang."""

    operator: str
    text: str


def find_bridge(layer_class: type) -> tuple[Bridge | None, Left | None]:
    """The bridge of a layer class, found through its ancestors.

    A parent's bridge serves a subclass only if no class between them overrides a ``forward*`` method, because what the
    subclass computes then is its own matter; such a class comes back with the reason instead.
    """
    own: list[str] = []
    for klass in layer_class.__mro__:
        bridge = BRIDGES.get(f"{klass.__module__}.{klass.__qualname__}")
        if bridge is not None:
            if own:
                return None, Left(bridge.operators[0], f"overrides {', '.join(own)} of {klass.__name__}")
            return bridge, None
        own += [f"{klass.__name__}.{name}" for name in vars(klass) if name.startswith("forward")]
    return None, None
