# SPDX-License-Identifier: Apache-2.0
"""``CudaBackend``: the standard operators as calls of sgl_kernel. What they can be called with is in ``limits``."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from fl_dispatch import Backend
from fl_vendor_cuda import NAME, sdk
from fl_vendor_cuda.cast_copies import CastCopies

if TYPE_CHECKING:
    from torch import Tensor


class CudaBackend(Backend):
    """One method an operator, with the standard signature. ``kernels`` is bound by the probe, which costs calls an attribute of
    the instance.
    """

    def __init__(self) -> None:
        self._reason: str | None = None
        self._casts = CastCopies()

    @property
    def name(self) -> str:
        """The vendor's name."""
        return NAME

    def is_available(self) -> bool:
        """Whether sgl_kernel loads here and there is a GPU."""
        self._reason = sdk.fault()
        if self._reason is None:
            _ = self.kernels  # now: the first call may be in a trace of torch.compile, which cannot look the module up
        return self._reason is None

    def unavailable_reason(self) -> str | None:
        """What ``is_available`` found."""
        return self._reason

    @functools.cached_property
    def kernels(self) -> Any:
        """The module sgl_kernel."""
        return sdk.load()

    def silu_and_mul(self, obj: Any, x: Tensor) -> Tensor:
        """x [..., 2d] to a new [..., d]; x is not written to."""
        return self.kernels.silu_and_mul(x)  # type: ignore[no-any-return]

    def gelu_and_mul(self, obj: Any, x: Tensor) -> Tensor:
        """As ``silu_and_mul`` with the exact gelu."""
        return self.kernels.gelu_and_mul(x)  # type: ignore[no-any-return]

    def gelu_tanh_and_mul(self, obj: Any, x: Tensor) -> Tensor:
        """As ``silu_and_mul`` with the tanh approximation of gelu."""
        return self.kernels.gelu_tanh_and_mul(x)  # type: ignore[no-any-return]

    def rms_norm(self, obj: Any, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """x [..., hidden]. Without a residual a new tensor; with one both are overwritten, and returned as
        (normed, sum). The float32 sum is normalised, what comes back as residual is the sum in x's dtype.
        """
        kernels = self.kernels
        if residual is None:
            return _plain(kernels.rmsnorm, obj, x)
        return _fused(kernels.fused_add_rmsnorm, obj, x, residual)

    def gemma_rms_norm(self, obj: Any, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """As ``rms_norm``, multiplied by 1 + weight.

        It is the float32 sum that is normalised, whatever ``obj.round_sum_before_norm`` says: SGLang's own CUDA method
        is this kernel too, and the operator's tolerance has room for either rounding.
        """
        kernels = self.kernels
        if residual is None:
            return _plain(kernels.gemma_rmsnorm, obj, x)
        return _fused(kernels.gemma_fused_add_rmsnorm, obj, x, residual)

    def rotary_embedding(
        self,
        obj: Any,
        query: Tensor,
        key: Tensor,
        cos: Tensor,
        sin: Tensor,
        position_ids: Tensor,
        rotary_interleaved: bool = False,
        inplace: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """query [tokens, heads, head_size] and key are overwritten, with ``inplace=False`` copies of them.

        cos and sin are not read but the tensor they were split from, ``obj.cos_sin_cache`` [max_position, rotary_dim].
        """
        cache = obj.cos_sin_cache
        if cache.dtype != query.dtype:
            cache = self._casts.get(cache, query.dtype)
        if not inplace:
            query, key = query.clone(), key.clone()
        self.kernels.rotary_embedding(position_ids, query, key, query.shape[2], cache, not rotary_interleaved)
        return query, key


def _plain(kernel: Any, obj: Any, x: Tensor) -> Tensor:
    if x.dim() == 2:
        return kernel(x, obj.weight, obj.variance_epsilon)  # type: ignore[no-any-return]
    # The kernel wants two dimensions. x is contiguous, so neither view copies.
    out: Tensor = kernel(x.view(-1, x.shape[-1]), obj.weight, obj.variance_epsilon)
    return out.view(x.shape)


def _fused(kernel: Any, obj: Any, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    if x.dim() == 2:
        kernel(x, residual, obj.weight, obj.variance_epsilon)
    else:
        hidden = x.shape[-1]
        kernel(x.view(-1, hidden), residual.view(-1, hidden), obj.weight, obj.variance_epsilon)
    return x, residual
