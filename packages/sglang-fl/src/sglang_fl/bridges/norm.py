# SPDX-License-Identifier: Apache-2.0
"""RMSNorm and GemmaRMSNorm."""

from __future__ import annotations

from typing import Any

from fl_dispatch import Site
from sglang_fl.bridges.bridge import Bridge, Forward


def _forward(_: Any, site: Site, native: Forward) -> Forward:
    plain = None

    def dispatched(
        layer: Any, x: Any, residual: Any = None, post_residual_addition: Any = None, quant_linear: Any = None
    ) -> Any:
        nonlocal plain
        if quant_linear is not None and quant_linear is not plain:
            if fuses_quantization(quant_linear):
                site.passed_on("fused with the quantization of the next linear layer")
                return native(layer, x, residual, post_residual_addition, quant_linear)
            plain = quant_linear
        if post_residual_addition is not None and residual is not None:
            # Added to the residual first, as SGLang's own CUDA method does (its native one adds it to the sum).
            residual = residual + post_residual_addition
        fn = site.fn
        try:
            return fn(layer, x, residual)
        except Exception as error:  # noqa: BLE001  (the guard: judged in recover)
            return site.recover(error, layer, x, residual)

    return dispatched


def fuses_quantization(linear: Any) -> bool:
    """Whether SGLang's norm may return an already quantized tensor for this linear layer.

    SGLang names the consumer of a norm for every model, quantized or not; it only matters where the consumer quantizes
    its input. Anything but a plain linear layer is taken to, unless SGLang itself says otherwise.
    """
    method = getattr(linear, "quant_method", None)
    if method is None or type(method).__name__.startswith("Unquantized"):
        return False
    from sglang.srt.layers import layernorm

    static_scale = getattr(layernorm, "_fp8_static_input_scale", None)
    return static_scale is None or static_scale(linear) is not None


def _outside_rms_norm(layer: Any) -> str | None:
    """SGLang's options that the standard operator has no word for. Some fields exist only in some versions."""
    if not getattr(layer, "has_weight", True):
        return "has no weight"
    if layer.variance_size_override is not None:
        return f"variance_size_override={layer.variance_size_override}"
    if getattr(layer, "fp32_residual", False):
        return "fp32_residual keeps the residual in float32"
    if getattr(layer, "override_orig_dtype", None) is not None:
        return f"override_orig_dtype={layer.override_orig_dtype}"
    if getattr(layer, "x_pad_to_multiple", 0):
        return f"x_pad_to_multiple={layer.x_pad_to_multiple} changes the output's shape"
    if fuses_quantization(getattr(layer, "_quant_linear", None)):
        return "fused with the quantization of the next linear layer"
    return None


_PARAMETERS = frozenset({"x", "residual", "post_residual_addition", "quant_linear"})

BRIDGES = (
    Bridge(
        layer="sglang.srt.layers.layernorm.RMSNorm",
        operators=("rms_norm",),
        operator=lambda layer: "rms_norm",
        outside=_outside_rms_norm,
        make=_forward,
        parameters=_PARAMETERS,
    ),
    Bridge(
        layer="sglang.srt.layers.layernorm.GemmaRMSNorm",
        operators=("gemma_rms_norm",),
        operator=lambda layer: "gemma_rms_norm",
        outside=lambda layer: None,
        make=_forward,
        parameters=_PARAMETERS,
    ),
)
