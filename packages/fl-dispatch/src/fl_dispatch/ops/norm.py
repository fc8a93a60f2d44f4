# SPDX-License-Identifier: Apache-2.0
"""Root mean square normalisation, plain and with Gemma's offset weight, each optionally fused with a residual sum.

Frameworks round at different places. What differs is said by optional fields of ``obj``; their defaults are what
SGLang's layers do, and a bridge of another framework sets them:

=========================  =========================  ==========================================================
``cast_x_before_out_mul``  ``cast_x_to_weight_dtype``  result of ``rms_norm``
=========================  =========================  ==========================================================
False                      not read                   (normed * weight) in float32, cast to x's dtype: SGLang
True                       False                      normed cast to x's dtype, then * weight: SGLang for Hugging
                                                      Face models, Hugging Face; result in the promoted dtype
True                       True                       normed cast to the weight's dtype, * weight, cast to x's
                                                      dtype: vLLM
=========================  =========================  ==========================================================

The last two are the same where x and weight have one dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any

import torch

from fl_dispatch.ops.inputs import (
    Draw,
    missing_field,
    no_common_device,
    no_float_tensor,
    rows_apart,
    shape_of,
    transposed,
)
from fl_dispatch.ops.spec import Field, OpSpec, Sample, Tolerance

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
    problem = missing_field(operator, obj, fields) or no_float_tensor("x", x) or no_float_tensor("obj.weight", obj.weight)
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


def samples(
    variants: tuple[dict[str, bool], ...], offset: float, dtype: torch.dtype, device: str, seed: int
) -> Iterator[Sample]:
    """Calls that every implementation must get right, each with and without a residual, for every variant of the
    rounding fields. ``offset`` is what the operator adds to the weight.
    """
    draw = Draw(dtype, device, seed)
    for fields in variants:
        name = ", ".join(f"{key}={value}" for key, value in fields.items())
        for with_residual in (False, True):
            suffix = f"{', residual' if with_residual else ''} ({name})"
            cases = _cases(draw, with_residual, offset)
            # What a cast of normed or of weight to a half dtype does to these is no rounding error any more.
            if not fields.get("cast_x_before_out_mul"):
                cases = chain(cases, _hard_weight_cases(draw, with_residual, offset))
            for label, x, residual, weight in cases:
                obj = SimpleNamespace(weight=weight, variance_epsilon=1e-6, **fields)
                yield Sample(label + suffix, obj, (x,) if residual is None else (x, residual))


Case = tuple[str, torch.Tensor, torch.Tensor | None, torch.Tensor]


def _cases(draw: Draw, with_residual: bool, offset: float) -> Iterator[Case]:
    """Weights, with the offset, are 1 + 0.25 z and thus in [0, 2]."""

    def case(
        label: str,
        *shape: int,
        layout: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.contiguous,
        weight_dtype: torch.dtype | None = None,
        scale: float = 1.0,
    ) -> Case:
        x = layout(draw.normal(*shape, scale=scale))
        residual = layout(draw.normal(*shape, scale=scale)) if with_residual else None
        return label, x, residual, draw.normal(shape[-1], mean=1.0 - offset, scale=0.25, dtype=weight_dtype)

    for tokens, hidden in ((0, 64), (1, 64), (3, 96), (17, 128), (256, 64), (5, 1), (3, 21), (17, 100), (2, 2048)):
        yield case(f"{tokens} tokens, hidden={hidden}", tokens, hidden)
    yield case("3-D", 2, 5, 48)
    yield case("3-D, zero tokens", 2, 0, 48)
    yield case("strided rows", 17, 64, layout=rows_apart)
    yield case("3-D, strided rows", 3, 5, 40, layout=rows_apart)
    yield case("transposed", 17, 32, layout=transposed)
    yield case("3-D, transposed", 3, 5, 32, layout=transposed)
    yield case("float32 weight", 17, 64, weight_dtype=torch.float32)
    # Up to 28000: float16 holds the sum of two, but no square.
    yield case("large magnitudes", 7, 64, scale=7000.0)
    # Mean squares of 2**-26 are far below epsilon.
    yield case("tiny magnitudes", 7, 64, scale=2.0**-13)


def _hard_weight_cases(draw: Draw, with_residual: bool, offset: float) -> Iterator[Case]:
    """Weights that make an early cast to a half dtype visible."""
    for label, dtype, factor in (
        ("big weights on small elements", draw.dtype, 1.0),
        ("weights beyond float16 on small elements", torch.float32, 16.0),
    ):
        # Two outliers a row push its other elements, once normalised, below the normal numbers of float16.
        x, residual = (draw.normal(7, 256, scale=2.0**-12) for _ in range(2))
        x[:, :2], residual[:, :2] = 1000.0, 500.0
        weight = draw.signed(256, low=5e3 * factor, high=2e4 * factor, dtype=dtype)
        weight[:2] = 0.5
        yield label, x, residual if with_residual else None, weight
    if offset:
        weight = draw.signed(256, low=1e-4, high=1e-3, dtype=torch.float32) - offset
        yield "float32 weights that nearly cancel the offset", draw.normal(7, 256), (
            draw.normal(7, 256) if with_residual else None
        ), weight


_FLUSHED = "results below the smallest normal number may be flushed to zero"
_TOLERANCES = {
    "float32": Tolerance(
        2.0**-18, 2.0**-126, "64 units of 2**-24: sum of squares in any order, an approximate rsqrt; " + _FLUSHED
    ),
    "float16": Tolerance(
        2.02 * 2.0**-11,
        2.0**-23,
        "two roundings (normed or sum, product) of unit roundoff 2**-11, 1 % for float32 inside; subnormal ones are "
        "off by 2**-25, times weights <= 2",
    ),
    "bfloat16": Tolerance(
        2.02 * 2.0**-8,
        2.0**-126,
        "two roundings (normed or sum, product) of unit roundoff 2**-8, 1 % for float32 inside; " + _FLUSHED,
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
        check=partial(check, "rms_norm", RMS_NORM_FIELDS),
        samples=partial(samples, _RMS_NORM_VARIANTS, 0.0),
        tolerances=_TOLERANCES,
    ),
    OpSpec(
        name="gemma_rms_norm",
        reference=gemma_rms_norm_reference,
        summary="x * (1 + weight) / rms(x), optionally of x + residual",
        fields=GEMMA_RMS_NORM_FIELDS,
        may_mutate=frozenset({"x", "residual"}),
        check=partial(check, "gemma_rms_norm", GEMMA_RMS_NORM_FIELDS),
        samples=partial(samples, _GEMMA_VARIANTS, 1.0),
        tolerances=_TOLERANCES,
    ),
)
