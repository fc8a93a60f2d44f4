# SPDX-License-Identifier: Apache-2.0
"""Samples and tolerances are worth something: mistakes that people make are outside of them."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from comparing import DTYPES, SPECS, worst_error
from torch.nn.functional import gelu, silu

HALF = ("float16", "bfloat16")


def gate_and_up_swapped(obj: Any, x: torch.Tensor) -> torch.Tensor:
    up, gate = x.chunk(2, dim=-1)
    return silu(gate) * up


def gate_and_up_interleaved(obj: Any, x: torch.Tensor) -> torch.Tensor:
    return silu(x[..., 0::2]) * x[..., 1::2]


def quick_gelu(obj: Any, x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return gate * torch.sigmoid(1.702 * gate) * up


def tanh_instead_of_erf(obj: Any, x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return gelu(gate, approximate="tanh") * up


def erf_instead_of_tanh(obj: Any, x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return gelu(gate) * up


def strides_ignored(obj: Any, x: torch.Tensor) -> torch.Tensor:
    dense = torch.as_strided(x, x.shape, torch.empty(x.shape, device="meta").stride())
    gate, up = dense.chunk(2, dim=-1)
    return silu(gate) * up


Norm = Callable[[torch.Tensor, torch.Tensor, float, torch.dtype], torch.Tensor]


def norm_with(rule: Norm, offset: float = 0.0) -> Callable[..., Any]:
    """A norm without any other mistake than the rule ``(total, weight, epsilon, dtype) -> result`` has."""

    def norm(obj: Any, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        total = x.float() if residual is None else x.float() + residual.float()
        weight = obj.weight if not offset else obj.weight.float() + offset
        out = rule(total, weight, obj.variance_epsilon, x.dtype)
        return out if residual is None else (out, total.to(x.dtype))

    return norm


def over_rms(x: torch.Tensor, epsilon: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)


def epsilon_missing(x: torch.Tensor, weight: torch.Tensor, epsilon: float, dtype: torch.dtype) -> torch.Tensor:
    return (over_rms(x, 0.0) * weight).to(dtype)


def epsilon_outside_the_root(x: torch.Tensor, weight: torch.Tensor, epsilon: float, dtype: torch.dtype) -> torch.Tensor:
    return (x / (x.pow(2).mean(-1, keepdim=True).sqrt() + epsilon) * weight).to(dtype)


def mean_subtracted(x: torch.Tensor, weight: torch.Tensor, epsilon: float, dtype: torch.dtype) -> torch.Tensor:
    return (over_rms(x - x.mean(-1, keepdim=True), epsilon) * weight).to(dtype)


def squares_in_half(x: torch.Tensor, weight: torch.Tensor, epsilon: float, dtype: torch.dtype) -> torch.Tensor:
    mean_square = x.to(dtype).pow(2).mean(-1, keepdim=True)
    return (x * torch.rsqrt(mean_square.float() + epsilon) * weight).to(dtype)


def sum_in_half(x: torch.Tensor, weight: torch.Tensor, epsilon: float, dtype: torch.dtype) -> torch.Tensor:
    total = torch.zeros(x.shape[:-1], dtype=dtype)
    for square in x.pow(2).to(dtype).unbind(-1):
        total = total + square
    mean_square = total.float().unsqueeze(-1) / x.shape[-1]
    return (x * torch.rsqrt(mean_square + epsilon) * weight).to(dtype)


def cast_before_a_big_weight(x: torch.Tensor, weight: torch.Tensor, epsilon: float, dtype: torch.dtype) -> torch.Tensor:
    return (over_rms(x, epsilon).to(dtype) * weight).to(dtype)


def weight_and_normed_cast(x: torch.Tensor, weight: torch.Tensor, epsilon: float, dtype: torch.dtype) -> torch.Tensor:
    return over_rms(x, epsilon).to(dtype) * weight.to(dtype)


def no_offset(x: torch.Tensor, weight: torch.Tensor, epsilon: float, dtype: torch.dtype) -> torch.Tensor:
    return (over_rms(x, epsilon) * (weight - 1.0)).to(dtype)


def weight_rounded_before_the_offset(obj: Any, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
    rounded = SimpleNamespace(weight=obj.weight.to(x.dtype), variance_epsilon=obj.variance_epsilon)
    return SPECS["gemma_rms_norm"].reference(rounded, x, residual)


def residual_not_added(obj: Any, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
    out = SPECS["rms_norm"].reference(obj, x)
    return out if residual is None else (out, (x.float() + residual.float()).to(x.dtype))


def old_residual_returned(obj: Any, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
    result = SPECS["rms_norm"].reference(obj, x, residual)
    return result if residual is None else (result[0], residual)


def outputs_swapped(obj: Any, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
    result = SPECS["rms_norm"].reference(obj, x, residual)
    return result if residual is None else result[::-1]


Rotary = Callable[..., tuple[torch.Tensor, torch.Tensor]]
rotary_reference: Rotary = SPECS["rotary_embedding"].reference


def style_ignored(obj: Any, q: Any, k: Any, cos: Any, sin: Any, ids: Any, rotary_interleaved: Any, inplace: Any) -> Any:
    return rotary_reference(obj, q, k, cos, sin, ids, False)


def style_inverted(
    obj: Any, q: Any, k: Any, cos: Any, sin: Any, ids: Any, rotary_interleaved: Any, inplace: Any
) -> Any:
    return rotary_reference(obj, q, k, cos, sin, ids, not rotary_interleaved)


def turned_backwards(obj: Any, q: Any, k: Any, cos: Any, sin: Any, ids: Any, **kwargs: Any) -> Any:
    return rotary_reference(obj, q, k, cos, -sin, ids, kwargs["rotary_interleaved"])


def cos_and_sin_swapped(obj: Any, q: Any, k: Any, cos: Any, sin: Any, ids: Any, **kwargs: Any) -> Any:
    return rotary_reference(obj, q, k, sin, cos, ids, kwargs["rotary_interleaved"])


def positions_taken_as_running(obj: Any, q: Any, k: Any, cos: Any, sin: Any, ids: Any, **kwargs: Any) -> Any:
    running = torch.arange(len(ids)) % len(cos)
    return rotary_reference(obj, q, k, cos, sin, running, kwargs["rotary_interleaved"])


def positions_off_by_one(obj: Any, q: Any, k: Any, cos: Any, sin: Any, ids: Any, **kwargs: Any) -> Any:
    return rotary_reference(obj, q, k, cos, sin, (ids + 1).clamp(max=len(cos) - 1), kwargs["rotary_interleaved"])


def key_not_turned(obj: Any, q: Any, k: Any, cos: Any, sin: Any, ids: Any, **kwargs: Any) -> Any:
    return rotary_reference(obj, q, k, cos, sin, ids, kwargs["rotary_interleaved"])[0], k


def unrotated_part_lost(obj: Any, q: Any, k: Any, cos: Any, sin: Any, ids: Any, **kwargs: Any) -> Any:
    turned = rotary_reference(obj, q, k, cos, sin, ids, kwargs["rotary_interleaved"])
    for x in turned:
        x[..., 2 * cos.shape[-1] :] = 0
    return turned


def angles_in_the_wrong_dtype(obj: Any, q: Any, k: Any, cos: Any, sin: Any, ids: Any, **kwargs: Any) -> Any:
    cos, sin = (table.to(torch.float8_e4m3fn).to(table.dtype) for table in (cos, sin))
    return rotary_reference(obj, q, k, cos, sin, ids, kwargs["rotary_interleaved"])


ALL = tuple(DTYPES)
MISTAKES: list[tuple[str, str, Callable[..., Any], tuple[str, ...]]] = [
    ("silu_and_mul", "gate and up swapped", gate_and_up_swapped, ALL),
    ("silu_and_mul", "gate and up interleaved", gate_and_up_interleaved, ALL),
    ("silu_and_mul", "gelu", tanh_instead_of_erf, ALL),
    ("silu_and_mul", "strides ignored", strides_ignored, ALL),
    ("gelu_and_mul", "tanh instead of erf", tanh_instead_of_erf, ALL),
    ("gelu_and_mul", "quick gelu", quick_gelu, ALL),
    ("gelu_tanh_and_mul", "erf instead of tanh", erf_instead_of_tanh, ALL),
    ("gelu_tanh_and_mul", "quick gelu", quick_gelu, ALL),
    ("rms_norm", "epsilon missing", norm_with(epsilon_missing), ALL),
    ("rms_norm", "epsilon outside the root", norm_with(epsilon_outside_the_root), ALL),
    ("rms_norm", "mean subtracted", norm_with(mean_subtracted), ALL),
    ("rms_norm", "squares in half", norm_with(squares_in_half), ("float16",)),
    ("rms_norm", "sum in half", norm_with(sum_in_half), HALF),
    # In bfloat16, which has float32's range, this is one rounding more among those the tolerance must allow; there the
    # comparison with the frameworks, bit by bit, tells the variants apart.
    ("rms_norm", "cast before a big weight", norm_with(cast_before_a_big_weight), ("float16",)),
    ("rms_norm", "weight and normed cast", norm_with(weight_and_normed_cast), HALF),
    ("rms_norm", "residual not added", residual_not_added, ALL),
    ("rms_norm", "old residual returned", old_residual_returned, ALL),
    ("rms_norm", "outputs swapped", outputs_swapped, ALL),
    ("gemma_rms_norm", "no offset", norm_with(no_offset, offset=1.0), ALL),
    ("gemma_rms_norm", "epsilon missing", norm_with(epsilon_missing, offset=1.0), ALL),
    ("gemma_rms_norm", "cast before a big weight", norm_with(cast_before_a_big_weight, offset=1.0), ("float16",)),
    ("gemma_rms_norm", "weight and normed cast", norm_with(weight_and_normed_cast, offset=1.0), HALF),
    ("gemma_rms_norm", "weight rounded before the offset", weight_rounded_before_the_offset, HALF),
    ("rotary_embedding", "style ignored", style_ignored, ALL),
    ("rotary_embedding", "style inverted", style_inverted, ALL),
    ("rotary_embedding", "turned backwards", turned_backwards, ALL),
    ("rotary_embedding", "cos and sin swapped", cos_and_sin_swapped, ALL),
    ("rotary_embedding", "positions taken as running", positions_taken_as_running, ALL),
    ("rotary_embedding", "positions off by one", positions_off_by_one, ALL),
    ("rotary_embedding", "key not turned", key_not_turned, ALL),
    ("rotary_embedding", "unrotated part lost", unrotated_part_lost, ALL),
    ("rotary_embedding", "angles in the wrong dtype", angles_in_the_wrong_dtype, ALL),
]


@pytest.mark.parametrize(
    ("name", "mistake", "dtype_name"),
    [
        pytest.param(name, fn, dtype_name, id=f"{name}: {what}, {dtype_name}")
        for name, what, fn, dtype_names in MISTAKES
        for dtype_name in dtype_names
    ],
)
def test_mistake_is_outside_the_tolerance(name: str, mistake: Callable[..., Any], dtype_name: str) -> None:
    assert worst_error(name, dtype_name, mistake).fraction > 1.0


def test_a_norm_without_a_mistake_is_inside_the_tolerance() -> None:
    """The control: what the planted norms share is right."""

    def right(x: torch.Tensor, weight: torch.Tensor, epsilon: float, dtype: torch.dtype) -> torch.Tensor:
        return (over_rms(x, epsilon) * weight).to(dtype)

    for dtype_name in DTYPES:
        assert worst_error("rms_norm", dtype_name, norm_with(right)).fraction <= 1.0
        assert worst_error("gemma_rms_norm", dtype_name, norm_with(right, offset=1.0)).fraction <= 1.0
