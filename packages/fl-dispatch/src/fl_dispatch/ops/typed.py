# SPDX-License-Identifier: Apache-2.0
"""The standard operators as plain functions with their exact signatures, at the cost of a direct call.

They follow the process's policy and, inside ``policy_context``, the context's. Each body is the guard of
``fl_dispatch.site``: what runs is ``site.fn``, and nothing is looked at unless it raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fl_dispatch.runtime import default_manager

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol, TypeVar

    from torch import Tensor

    Result = TypeVar("Result", covariant=True)

    class Serves(Protocol[Result]):
        """A site, with the type of what its operator returns."""

        @property
        def fn(self) -> Callable[..., Result]:
            """What runs now."""

        def recover(self, error: Exception, *args: Any, **kwargs: Any) -> Result:
            """What to do when it raised."""


# Any: what a site calls is checked when it is registered, not by types; the signatures below are the operators' own.
_shared: Any = default_manager().shared_site
_silu_and_mul: Serves[Tensor] = _shared("silu_and_mul")
_gelu_and_mul: Serves[Tensor] = _shared("gelu_and_mul")
_gelu_tanh_and_mul: Serves[Tensor] = _shared("gelu_tanh_and_mul")
_rms_norm: Serves[Tensor | tuple[Tensor, Tensor]] = _shared("rms_norm")
_gemma_rms_norm: Serves[Tensor | tuple[Tensor, Tensor]] = _shared("gemma_rms_norm")
_rotary_embedding: Serves[tuple[Tensor, Tensor]] = _shared("rotary_embedding")


def silu_and_mul(obj: Any, x: Tensor) -> Tensor:
    """``silu(x[..., :d]) * x[..., d:]``; x [..., 2d], returns [..., d] of x's dtype. Reads nothing of obj."""
    fn = _silu_and_mul.fn
    try:
        return fn(obj, x)
    except Exception as error:  # noqa: BLE001  (the guard: judged in recover)
        return _silu_and_mul.recover(error, obj, x)


def gelu_and_mul(obj: Any, x: Tensor) -> Tensor:
    """``gelu(x[..., :d]) * x[..., d:]`` with the exact (erf) gelu; shapes as ``silu_and_mul``."""
    fn = _gelu_and_mul.fn
    try:
        return fn(obj, x)
    except Exception as error:  # noqa: BLE001  (the guard: judged in recover)
        return _gelu_and_mul.recover(error, obj, x)


def gelu_tanh_and_mul(obj: Any, x: Tensor) -> Tensor:
    """``gelu(x[..., :d]) * x[..., d:]`` with the tanh approximation; shapes as ``silu_and_mul``."""
    fn = _gelu_tanh_and_mul.fn
    try:
        return fn(obj, x)
    except Exception as error:  # noqa: BLE001  (the guard: judged in recover)
        return _gelu_tanh_and_mul.recover(error, obj, x)


def rms_norm(obj: Any, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """Root-mean-square norm of x [..., hidden], of ``x + residual`` when given.

    Reads ``obj.weight`` [hidden] and ``obj.variance_epsilon``. Returns the normed tensor, with a residual
    (normed, new residual). x and residual may be overwritten: use only what is returned.
    """
    fn = _rms_norm.fn
    try:
        return fn(obj, x, residual)
    except Exception as error:  # noqa: BLE001  (the guard: judged in recover)
        return _rms_norm.recover(error, obj, x, residual)


def gemma_rms_norm(obj: Any, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """As ``rms_norm`` with the weight offset by one: multiplied by ``1 + obj.weight``."""
    fn = _gemma_rms_norm.fn
    try:
        return fn(obj, x, residual)
    except Exception as error:  # noqa: BLE001  (the guard: judged in recover)
        return _gemma_rms_norm.recover(error, obj, x, residual)


def rotary_embedding(
    obj: Any,
    query: Tensor,
    key: Tensor,
    cos: Tensor,
    sin: Tensor,
    position_ids: Tensor,
    rotary_interleaved: bool = False,
    inplace: bool = True,
) -> tuple[Tensor, Tensor]:
    """Rotate query [tokens, heads, head_size] and key by position.

    cos, sin: [max_position, rotary_dim / 2]; position_ids: [tokens], integer. ``inplace`` permits writing to query and
    key: use only what is returned.
    """
    fn = _rotary_embedding.fn
    try:
        return fn(obj, query, key, cos, sin, position_ids, rotary_interleaved, inplace)
    except Exception as error:  # noqa: BLE001  (the guard: judged in recover)
        return _rotary_embedding.recover(error, obj, query, key, cos, sin, position_ids, rotary_interleaved, inplace)
