# SPDX-License-Identifier: Apache-2.0
"""SiluAndMul and GeluAndMul."""

from __future__ import annotations

from typing import Any

from fl_dispatch import Site
from sglang_fl.bridges.bridge import Bridge, Forward

_GELU = {"none": "gelu_and_mul", "tanh": "gelu_tanh_and_mul"}


def _forward(_: Any, site: Site, native: Forward) -> Forward:
    def dispatched(layer: Any, x: Any) -> Any:
        fn = site.fn
        try:
            return fn(layer, x)
        except Exception as error:  # noqa: BLE001  (the guard: judged in recover)
            return site.recover(error, layer, x)

    return dispatched


def _unknown_gelu(layer: Any) -> str | None:
    return None if layer.approximate in _GELU else f"approximate={layer.approximate!r} has no standard operator"


BRIDGES = (
    Bridge(
        layer="sglang.srt.layers.activation.SiluAndMul",
        operators=("silu_and_mul",),
        operator=lambda layer: "silu_and_mul",
        outside=lambda layer: None,
        make=_forward,
        parameters=frozenset({"x"}),
    ),
    Bridge(
        layer="sglang.srt.layers.activation.GeluAndMul",
        operators=("gelu_and_mul", "gelu_tanh_and_mul"),
        operator=lambda layer: _GELU.get(layer.approximate, "gelu_and_mul"),
        outside=_unknown_gelu,
        make=_forward,
        parameters=frozenset({"x"}),
    ),
)
