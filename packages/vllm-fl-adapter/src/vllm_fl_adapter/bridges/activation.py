# SPDX-License-Identifier: Apache-2.0
"""SiluAndMul and GeluAndMul."""

from __future__ import annotations

from typing import Any

from fl_dispatch import Site
from vllm_fl_adapter.bridges.bridge import Bridge, Forward

_MODULE = "vllm.model_executor.layers.activation"
_GELU = {"none": "gelu_and_mul", "tanh": "gelu_tanh_and_mul"}


def _eager(layer: Any, site: Site, native: Forward) -> Forward:
    def forward(self: Any, x: Any) -> Any:
        fn = site.fn
        try:
            return fn(self, x)
        except Exception as error:  # noqa: BLE001  (the guard: judged in recover)
            return site.recover(error, self, x)

    return forward


def _traced(layer: Any, call: Forward, native: Forward) -> Forward:
    def forward(self: Any, x: Any) -> Any:
        return call(self, x)

    return forward


def _unknown_gelu(layer: Any) -> str | None:
    return None if layer.approximate in _GELU else f"approximate={layer.approximate!r} has no standard operator"


BRIDGES = (
    Bridge(
        module=_MODULE,
        layer="SiluAndMul",
        operators=("silu_and_mul",),
        operator=lambda layer: "silu_and_mul",
        outside=lambda layer: None,
        eager=_eager,
        traced=_traced,
    ),
    Bridge(
        module=_MODULE,
        layer="GeluAndMul",
        operators=("gelu_and_mul", "gelu_tanh_and_mul"),
        operator=lambda layer: _GELU.get(layer.approximate, "gelu_and_mul"),
        outside=_unknown_gelu,
        eager=_eager,
        traced=_traced,
    ),
)
