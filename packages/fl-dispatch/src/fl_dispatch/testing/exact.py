# SPDX-License-Identifier: Apache-2.0
"""The standard operators in float64, from the formulas, without a line of the references.

Where a formula has more than one form, this file uses another one than the references, so that a slip is not made
twice. Rounding fields of ``obj`` are not read: they choose between roundings, and float64 has none to speak of.
Arguments and results are those of ``fl_dispatch.ops``, the results float64 and always a tuple.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

Result = tuple[torch.Tensor, ...]


def silu_and_mul(obj: Any, x: torch.Tensor) -> Result:
    """``z / (1 + exp(-z)) * up``."""
    gate, up = _halves(x)
    return (gate / (1.0 + torch.exp(-gate)) * up,)


def gelu_and_mul(obj: Any, x: torch.Tensor) -> Result:
    """``z * P(Z <= z) * up``, Z standard normal."""
    gate, up = _halves(x)
    # z * P(Z <= z), the normal distribution's tail by erfc, which does not cancel.
    return (gate * 0.5 * torch.special.erfc(-gate / math.sqrt(2.0)) * up,)


def gelu_tanh_and_mul(obj: Any, x: torch.Tensor) -> Result:
    """The tanh approximation of ``gelu_and_mul``."""
    gate, up = _halves(x)
    # (1 + tanh(s)) / 2 is the logistic function of 2 s.
    s = math.sqrt(2.0 / math.pi) * (gate + 0.044715 * gate * gate * gate)
    return (gate / (1.0 + torch.exp(-2.0 * s)) * up,)


def rms_norm(obj: Any, x: torch.Tensor, residual: torch.Tensor | None = None) -> Result:
    """``t / sqrt(mean(t ** 2) + epsilon) * weight``."""
    return _rms(x, residual, obj.weight.double(), obj.variance_epsilon)


def gemma_rms_norm(obj: Any, x: torch.Tensor, residual: torch.Tensor | None = None) -> Result:
    """``rms_norm`` with 1 + weight."""
    return _rms(x, residual, obj.weight.double() + 1.0, obj.variance_epsilon)


def rotary_embedding(
    obj: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    position_ids: torch.Tensor,
    rotary_interleaved: bool = False,
    inplace: bool = True,
) -> Result:
    """Pairs as complex numbers times cos + i sin."""
    return tuple(_turn(x.double(), cos, sin, position_ids, rotary_interleaved) for x in (query, key))


def _halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    d = x.shape[-1] // 2
    wide = x.double()
    return wide[..., :d], wide[..., d:]


def _rms(x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, epsilon: float) -> Result:
    total = x.double() if residual is None else x.double() + residual.double()
    mean_square = torch.einsum("...i,...i->...", total, total) / total.shape[-1]
    normed = total / torch.sqrt(mean_square + epsilon)[..., None] * weight
    return (normed,) if residual is None else (normed, total)


def _turn(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, position_ids: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    """Multiply the complex number a + ib of each pair by cos + i sin."""
    pairs = cos.shape[-1]
    index = torch.arange(pairs)
    first, second = (2 * index, 2 * index + 1) if interleaved else (index, index + pairs)
    rows = position_ids.long()
    # Only the rows in use: a model's tables are as long as its longest sequence.
    turn = torch.complex(cos[rows].double(), sin[rows].double())
    turned = torch.complex(x[..., first], x[..., second]) * turn[:, None, :]
    out = x.clone()
    out[..., first] = turned.real
    out[..., second] = turned.imag
    return out


_FORMULAS: dict[str, Callable[..., Result]] = {
    "silu_and_mul": silu_and_mul,
    "gelu_and_mul": gelu_and_mul,
    "gelu_tanh_and_mul": gelu_tanh_and_mul,
    "rms_norm": rms_norm,
    "gemma_rms_norm": gemma_rms_norm,
    "rotary_embedding": rotary_embedding,
}


def exact(name: str, obj: Any, *args: Any, **kwargs: Any) -> Result:
    """The results of standard operator ``name`` in float64; KeyError for an operator without a formula here."""
    return _FORMULAS[name](obj, *args, **kwargs)


def has_formula(name: str) -> bool:
    """Whether ``exact`` knows the operator; of an operator that a vendor defined, only its reference is known."""
    return name in _FORMULAS
