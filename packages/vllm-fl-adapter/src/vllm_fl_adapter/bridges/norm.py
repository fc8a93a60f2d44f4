# SPDX-License-Identifier: Apache-2.0
"""RMSNorm and GemmaRMSNorm."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from fl_dispatch import Site
from vllm_fl_adapter.bridges.bridge import Bridge, Forward

_MODULE = "vllm.model_executor.layers.layernorm"

#: The normed x is cast to the weight's dtype before it is multiplied by it, and the product to x's. Wishes, since other
#: kernels multiply in float32 and round once, which is no less exact.
VLLM_ROUNDING: MappingProxyType[str, Any] = MappingProxyType(
    {
        "cast_x_before_out_mul": True,
        "cast_x_to_weight_dtype": True,
        "fl_wishes": ("cast_x_before_out_mul", "cast_x_to_weight_dtype"),
    }
)


def _eager(layer: Any, site: Site, native: Forward) -> Forward:
    def forward(self: Any, x: Any, residual: Any = None) -> Any:
        fn = site.fn
        try:
            return fn(self, x, residual)
        except Exception as error:  # noqa: BLE001  (the guard: judged in recover)
            return site.recover(error, self, x, residual)

    return forward


def _traced(layer: Any, call: Forward, native: Forward) -> Forward:
    def forward(self: Any, x: Any, residual: Any = None) -> Any:
        return call(self, x, residual)

    return forward


def _outside_rms_norm(layer: Any) -> str | None:
    """vLLM's options that the standard operator has no word for."""
    if not layer.has_weight:
        return "has no weight"
    if layer.variance_size_override is not None:
        return f"variance_size_override={layer.variance_size_override}"
    return None


BRIDGES = (
    Bridge(
        module=_MODULE,
        layer="RMSNorm",
        operators=("rms_norm",),
        operator=lambda layer: "rms_norm",
        outside=_outside_rms_norm,
        eager=_eager,
        traced=_traced,
        attributes=VLLM_ROUNDING,
    ),
    Bridge(
        module=_MODULE,
        layer="GemmaRMSNorm",
        operators=("gemma_rms_norm",),
        operator=lambda layer: "gemma_rms_norm",
        outside=lambda layer: None,
        eager=_eager,
        traced=_traced,
        # The float32 sum of x and residual is normalised, not the rounded one.
        attributes=MappingProxyType({"round_sum_before_norm": False, "fl_wishes": ("round_sum_before_norm",)}),
    ),
)
