# SPDX-License-Identifier: Apache-2.0
"""Gated activations: ``act(gate) * up``, where gate and up are the two halves of one tensor."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.functional import gelu, silu

from fl_dispatch.ops.inputs import Draw, no_float_tensor, rows_apart, shape_of, transposed
from fl_dispatch.ops.spec import OpSpec, Sample, Tolerance


def silu_and_mul_reference(obj: Any, x: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` with ``silu(z) = z / (1 + exp(-z))``: the SwiGLU gate (Shazeer 2020, arXiv:2002.05202).

    Args:
        obj: the layer; nothing of it is read.
        x: [..., 2 * d], floating point; gate is ``x[..., :d]`` and up is ``x[..., d:]``. Not written to.

    Returns:
        [..., d] in x's dtype. The activation is rounded to that dtype before the multiplication, as in SGLang's and
        vLLM's native forward.

    Raises:
        RuntimeError: the last dimension is odd.
    """
    gate, up = x.chunk(2, dim=-1)
    return silu(gate) * up


def gelu_and_mul_reference(obj: Any, x: torch.Tensor) -> torch.Tensor:
    """``gelu(gate) * up`` with the exact ``gelu(z) = z / 2 * (1 + erf(z / sqrt(2)))`` (Hendrycks and Gimpel 2016,
    arXiv:1606.08415; as a gate: GEGLU of arXiv:2002.05202).

    Arguments, result and errors as for ``silu_and_mul``.
    """
    gate, up = x.chunk(2, dim=-1)
    return gelu(gate) * up


def gelu_tanh_and_mul_reference(obj: Any, x: torch.Tensor) -> torch.Tensor:
    """``gelu(gate) * up`` with ``gelu(z) = z / 2 * (1 + tanh(sqrt(2 / pi) * (z + 0.044715 * z ** 3)))``, the tanh
    approximation of arXiv:1606.08415.

    Arguments, result and errors as for ``silu_and_mul``.
    """
    gate, up = x.chunk(2, dim=-1)
    return gelu(gate, approximate="tanh") * up


def check(obj: Any, x: Any) -> str | None:
    """What is wrong with a call, or None."""
    if problem := no_float_tensor("x", x):
        return problem
    if x.dim() == 0 or x.shape[-1] % 2:
        return f"the last dimension of x must be even, gate and up side by side; x is {shape_of(x)}"
    return None


def samples(dtype: torch.dtype, device: str, seed: int) -> Iterator[Sample]:
    """Calls that every implementation must get right.

    Where gates are ordinary, |up| <= 4; large gates stay outside of [-50, 50]: the tolerances rely on both.
    """
    draw = Draw(dtype, device, seed)

    def sample(label: str, x: torch.Tensor) -> Sample:
        return Sample(label, SimpleNamespace(), (x,))

    for tokens, d in ((0, 64), (1, 64), (3, 8), (17, 176), (256, 128), (5, 1), (3, 21), (17, 50)):
        yield sample(f"{tokens} tokens, d={d}", draw.normal(tokens, 2 * d))
    yield sample("3-D", draw.normal(2, 5, 2 * 48))
    yield sample("3-D, zero tokens", draw.normal(2, 0, 2 * 48))
    yield sample("strided rows", rows_apart(draw.normal(17, 2 * 64)))
    yield sample("3-D, strided rows", rows_apart(draw.normal(3, 5, 2 * 40)))
    yield sample("transposed", transposed(draw.normal(17, 2 * 32)))
    yield sample("3-D, transposed", transposed(draw.normal(3, 5, 2 * 32)))
    yield sample("wide range of gates", torch.cat((draw.normal(17, 64, scale=4.0), draw.normal(17, 64)), dim=-1))
    # 200 * 200 is below the largest float16, exp(200) is above the largest float32.
    yield sample("large magnitudes", draw.signed(7, 2 * 64, low=50.0, high=200.0))
    yield sample("tiny magnitudes", draw.normal(7, 2 * 64, scale=2.0**-10))


def _tolerances(fp32_atol: float, fp32_why: str) -> dict[str, Tolerance]:
    two = "two roundings (activation, product) of unit roundoff {u}, 1 % for float32 inside; "
    return {
        "float32": Tolerance(
            2.0**-16,
            fp32_atol,
            "a fast exp may be off by 2 + 1.2 |z| units in the last place (CUDA's __expf), 110 for |z| <= 88; "
            + fp32_why,
        ),
        "float16": Tolerance(
            2.02 * 2.0**-11,
            max(2.0**-22, fp32_atol),
            two.format(u="2**-11") + "a subnormal activation is off by 2**-25, times |up| <= 4, and so is the product",
        ),
        "bfloat16": Tolerance(2.02 * 2.0**-8, fp32_atol, two.format(u="2**-8") + fp32_why),
    }


_OVERFLOW = "exp(-z) overflows for z < -88.7: up to 89 exp(-88.7) is lost, times |up| <= 200"
_CANCELLED = "1 + erf(z) or 1 + tanh(z) near z = -4 keeps 2**-24 absolute, times |z / 2| <= 4 and |up| <= 4"

SPECS: tuple[OpSpec, ...] = (
    OpSpec(
        name="silu_and_mul",
        reference=silu_and_mul_reference,
        summary="silu(x[..., :d]) * x[..., d:]",
        by_row=frozenset({"x"}),
        check=check,
        samples=samples,
        tolerances=_tolerances(2.0**-112, _OVERFLOW),
    ),
    OpSpec(
        name="gelu_and_mul",
        reference=gelu_and_mul_reference,
        summary="gelu(x[..., :d]) * x[..., d:], exact gelu",
        by_row=frozenset({"x"}),
        check=check,
        samples=samples,
        tolerances=_tolerances(2.0**-20, _CANCELLED),
    ),
    OpSpec(
        name="gelu_tanh_and_mul",
        reference=gelu_tanh_and_mul_reference,
        summary="gelu(x[..., :d]) * x[..., d:], tanh approximation of gelu",
        by_row=frozenset({"x"}),
        check=check,
        samples=samples,
        tolerances=_tolerances(2.0**-20, _CANCELLED),
    ),
)
