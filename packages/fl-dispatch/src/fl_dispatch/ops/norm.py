# SPDX-License-Identifier: Apache-2.0
"""Root mean square normalisation, plain and with Gemma's offset weight, each optionally fused with a residual sum.

Frameworks round at different places. What differs is said by optional fields of ``obj``; their defaults are what
SGLang's layers do, and a bridge of another framework sets them:

=========================  ==========================  =========================================================
``cast_x_before_out_mul``  ``cast_x_to_weight_dtype``  result of ``rms_norm``
=========================  ==========================  =========================================================
False                      not read                    normed * weight in float32, cast to x's dtype: SGLang
True                       False                       normed cast to x's dtype, then * weight, the product in the
                                                       promoted dtype: Hugging Face, SGLang where it follows it
True                       True                        normed cast to the weight's dtype, * weight, cast to x's
                                                       dtype: vLLM
=========================  ==========================  =========================================================

The last two are the same where x and weight have one dtype. The mean of squares adds in the order that the memory
layout suggests to torch: a copy of a tensor whose rows are not contiguous can differ in the last bit.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from fl_dispatch.ops.inputs import missing_field, no_common_device, no_float_tensor, shape_of
from fl_dispatch.ops.norm_samples import norm_samples
from fl_dispatch.ops.spec import Field, OpSpec, Tolerance

Normed = torch.Tensor | tuple[torch.Tensor, torch.Tensor]

_EPSILON = Field("variance_epsilon", "float, added to the mean of squares")

RMS_NORM_FIELDS: tuple[Field, ...] = (
    Field("weight", "[hidden_size], floating point, of any dtype; ones for a layer without weight"),
    _EPSILON,
    Field("cast_x_before_out_mul", "bool: cast the normalised x down before it is multiplied by weight", default=False),
    Field(
        "cast_x_to_weight_dtype",
        "bool, read only if cast_x_before_out_mul: cast to weight's dtype and the product to x's (vLLM), instead of "
        "casting to x's and leaving the product in the promoted dtype (SGLang, Hugging Face)",
        default=False,
    ),
)

GEMMA_RMS_NORM_FIELDS: tuple[Field, ...] = (
    Field("weight", "[hidden_size], floating point, of any dtype: w, where 1 + w is multiplied by"),
    _EPSILON,
    Field(
        "round_sum_before_norm",
        "bool, read only with a residual: normalise x + residual as rounded to their own dtype (SGLang), instead of "
        "the float32 sum (vLLM)",
        default=True,
    ),
    Field("gemma_weight", "[hidden_size], 1 + w in weight's dtype, where a layer keeps it (SGLang)", default=None),
)


def rms_norm_reference(obj: Any, x: torch.Tensor, residual: torch.Tensor | None = None) -> Normed:
    """``t * weight / sqrt(mean(t ** 2) + variance_epsilon)``, t = x or x + residual, the mean over the last
    dimension (Zhang and Sennrich 2019, arXiv:1910.07467).

    Args:
        obj: the layer: weight [hidden_size], variance_epsilon, and the optional fields of the module's table.
        x: [..., hidden_size], floating point.
        residual: x's shape, floating point, or None.

    Everything up to the multiplication by weight is float32. An implementation may write to x and residual when a
    residual is given, never without one (the caller keeps x as the next residual). The reference writes to neither.

    Returns:
        Without a residual the result, [..., hidden_size]; with one (result, x + residual), the sum rounded to x's
        dtype; what is normalised is the sum before that rounding. The result has x's dtype, except with
        ``cast_x_before_out_mul`` and a wider weight (the module's table).

    Raises:
        RuntimeError: shapes that do not fit together.
    """
    total = x.float() if residual is None else x.float() + residual.float()
    normed = _normalise(total, obj.variance_epsilon)
    if not getattr(obj, "cast_x_before_out_mul", False):
        out = (normed * obj.weight).to(x.dtype)
    elif getattr(obj, "cast_x_to_weight_dtype", False):
        out = (normed.to(obj.weight.dtype) * obj.weight).to(x.dtype)
    else:
        out = normed.to(x.dtype) * obj.weight
    return out if residual is None else (out, total.to(x.dtype))


def gemma_rms_norm_reference(obj: Any, x: torch.Tensor, residual: torch.Tensor | None = None) -> Normed:
    """``t * (1 + weight) / sqrt(mean(t ** 2) + variance_epsilon)``: ``rms_norm`` with Gemma's offset weight (Gemma
    Team 2024, arXiv:2403.08295).

    Args:
        obj: the layer: weight [hidden_size], variance_epsilon; optional round_sum_before_norm.
        x: [..., hidden_size], floating point.
        residual: x's shape, floating point, or None.

    1 + weight and the product are float32, then the result is cast. What may be written to is as for ``rms_norm``.

    Returns:
        Without a residual the result in x's dtype; with one (result, x + residual). With ``round_sum_before_norm``
        the sum is made in the promoted dtype of both and returned in it, and normalised after that rounding (SGLang);
        without, as in ``rms_norm`` (vLLM).

    Raises:
        RuntimeError: shapes that do not fit together.
    """
    new_residual: torch.Tensor | None = None
    if residual is None:
        total = x.float()
    elif getattr(obj, "round_sum_before_norm", True):
        new_residual = x + residual
        total = new_residual.float()
    else:
        total = x.float() + residual.float()
        new_residual = total.to(x.dtype)
    out = (_normalise(total, obj.variance_epsilon) * (1.0 + obj.weight.float())).to(x.dtype)
    return out if new_residual is None else (out, new_residual)


def _normalise(x: torch.Tensor, epsilon: float) -> torch.Tensor:
    """x, float32, over the root of its mean square."""
    return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + epsilon)


def check(operator: str, fields: tuple[Field, ...], obj: Any, x: Any, residual: Any = None) -> str | None:
    """What is wrong with a call, or None."""
    problem = (
        missing_field(operator, obj, fields) or no_float_tensor("x", x) or no_float_tensor("obj.weight", obj.weight)
    )
    if problem:
        return problem
    weight = obj.weight
    if x.dim() == 0 or weight.dim() != 1 or x.shape[-1] != len(weight):
        return (
            "obj.weight must be [hidden_size] and x [..., hidden_size]; "
            f"obj.weight is {shape_of(weight)}, x {shape_of(x)}"
        )
    if residual is not None:
        if problem := no_float_tensor("residual", residual):
            return problem
        if residual.shape != x.shape:
            return f"residual must have x's shape; residual is {shape_of(residual)}, x {shape_of(x)}"
    return no_common_device(x=x, residual=residual, **{"obj.weight": weight})


_FLUSHED = "results below the smallest normal number may be flushed to zero"
_TOLERANCES = {
    "float32": Tolerance(
        2.0**-18, 2.0**-126, "64 units of 2**-24: sum of squares in any order, an approximate rsqrt; " + _FLUSHED
    ),
    "float16": Tolerance(
        2.2 * 2.0**-11,
        2.0**-23,
        "two roundings (normed or sum, then product) of unit roundoff 2**-11, 10 % for what the sum's rounding does to "
        "the mean; subnormal numbers are off by 2**-25, times weights <= 2",
    ),
    "bfloat16": Tolerance(
        2.2 * 2.0**-8,
        2.0**-126,
        "two roundings (normed or sum, then product) of unit roundoff 2**-8, 10 % for what the sum's rounding does to "
        "the mean; " + _FLUSHED,
    ),
}

_RMS_NORM_VARIANTS: tuple[dict[str, bool], ...] = (
    {"cast_x_before_out_mul": False},
    {"cast_x_before_out_mul": True},
    {"cast_x_before_out_mul": True, "cast_x_to_weight_dtype": True},
)
_GEMMA_VARIANTS: tuple[dict[str, bool], ...] = ({"round_sum_before_norm": True}, {"round_sum_before_norm": False})

SPECS: tuple[OpSpec, ...] = (
    OpSpec(
        name="rms_norm",
        reference=rms_norm_reference,
        summary="x * weight / rms(x), optionally of x + residual",
        fields=RMS_NORM_FIELDS,
        may_mutate=frozenset({"x", "residual"}),
        by_row=frozenset({"x", "residual"}),
        check=partial(check, "rms_norm", RMS_NORM_FIELDS),
        samples=partial(norm_samples, _RMS_NORM_VARIANTS, 0.0),
        tolerances=_TOLERANCES,
    ),
    OpSpec(
        name="gemma_rms_norm",
        reference=gemma_rms_norm_reference,
        summary="x * (1 + weight) / rms(x), optionally of x + residual",
        fields=GEMMA_RMS_NORM_FIELDS,
        may_mutate=frozenset({"x", "residual"}),
        by_row=frozenset({"x", "residual"}),
        check=partial(check, "gemma_rms_norm", GEMMA_RMS_NORM_FIELDS),
        samples=partial(norm_samples, _GEMMA_VARIANTS, 1.0),
        tolerances=_TOLERANCES,
    ),
)
