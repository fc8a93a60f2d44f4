# SPDX-License-Identifier: Apache-2.0
"""Real layers of SGLang in the test's own process, hooked by SGLang's own plug-in loader."""

from __future__ import annotations

from typing import Any

import torch
from server_arguments import publish_arguments

from fl_dispatch import default_manager


def load() -> Any:
    """Let SGLang's loader run in this process; returns what we installed."""
    from sglang.srt.plugins import load_plugins

    from sglang_fl.plugin import installed

    load_plugins()
    default_manager().watch(calls=True)
    here = installed()
    assert here is not None
    from sglang.srt.platforms import current_platform

    current_platform.init_backend()
    publish_arguments()
    return here


def norm(**options: Any) -> Any:
    from sglang.srt.layers.layernorm import RMSNorm

    layer = RMSNorm(32, eps=1e-5, **options)
    with torch.no_grad():
        layer.weight.copy_(torch.rand(32) + 0.5)
    return layer


def rotary(cls: str = "RotaryEmbedding", **options: Any) -> Any:
    from sglang.srt.layers.rotary_embedding import base

    arguments = {
        "head_size": 16,
        "rotary_dim": 16,
        "max_position_embeddings": 64,
        "base": 10000,
        "is_neox_style": True,
        "dtype": torch.float32,
    }
    return getattr(base, cls)(**{**arguments, **options})


def settled(loaded: Any, layer: Any) -> Any:
    """Decide the layer as the worker does after loading; returns its site, or the reason it was left to SGLang."""
    assert loaded.binder.settle_layer(layer) is None
    reasons = [left[2] for candidate, left in loaded.binder._left.items() if candidate is layer]
    if reasons:
        return reasons[0]
    (site,) = [site for site in loaded.binder._manager.sites() if site.obj is layer]
    return site


def native(layer: Any, *args: Any, **kwargs: Any) -> Any:
    return type(layer).forward_native(layer, *args, **kwargs)
