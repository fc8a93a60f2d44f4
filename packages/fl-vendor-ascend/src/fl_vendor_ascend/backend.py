# SPDX-License-Identifier: Apache-2.0
"""``AscendBackend``: the standard operators as calls of torch_npu. What they can be called with is in ``limits``.

No method writes to its arguments.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from fl_dispatch import Backend
from fl_vendor_ascend import rotary, sdk
from fl_vendor_ascend.device import NAME

if TYPE_CHECKING:
    from torch import Tensor


class AscendBackend(Backend):
    """One method an operator, with the standard signature. ``kernels`` is bound on first use, which costs later calls
    an attribute of the instance.
    """

    def __init__(self) -> None:
        self._reason: str | None = None

    @property
    def name(self) -> str:
        """The vendor's name."""
        return NAME

    def is_available(self) -> bool:
        """Whether torch_npu loads here and there is an NPU."""
        self._reason = sdk.fault()
        return self._reason is None

    def unavailable_reason(self) -> str | None:
        """What ``is_available`` found."""
        return self._reason

    @functools.cached_property
    def kernels(self) -> Any:
        """The module torch_npu."""
        return sdk.load()

    def silu_and_mul(self, obj: Any, x: Tensor) -> Tensor:
        """x [..., 2d] to a new [..., d]."""
        return self.kernels.npu_swiglu(x, dim=-1)  # type: ignore[no-any-return]

    def gelu_and_mul(self, obj: Any, x: Tensor) -> Tensor:
        """As ``silu_and_mul`` with the exact gelu."""
        return self._geglu(x, 0)

    def gelu_tanh_and_mul(self, obj: Any, x: Tensor) -> Tensor:
        """As ``silu_and_mul`` with the tanh approximation of gelu."""
        return self._geglu(x, 1)

    def _geglu(self, x: Tensor, approximate: int) -> Tensor:
        # Without activate_left it is the second half that goes through gelu. The other result is gelu alone.
        out, _ = self.kernels.npu_geglu(x, dim=-1, approximate=approximate, activate_left=True)
        return out  # type: ignore[no-any-return]

    def rms_norm(self, obj: Any, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """x [..., hidden]; new tensors: normed, and with a residual (normed, sum)."""
        if residual is None:
            normed, _ = self.kernels.npu_rms_norm(x, obj.weight, obj.variance_epsilon)
            return normed  # type: ignore[no-any-return]
        normed, _, total = self.kernels.npu_add_rms_norm(x, residual, obj.weight, obj.variance_epsilon)
        return normed, total

    def gemma_rms_norm(self, obj: Any, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """As ``rms_norm``, multiplied by 1 + weight.

        torch_npu has no fused form: 1 + weight, rounded to 16 bits for ``npu_add_rms_norm``, would lose what the operator's
        tolerance asks for. The sum is rounded before it is normalised, whatever ``obj.round_sum_before_norm`` says; the
        tolerance has room for either.
        """
        total = x if residual is None else x + residual
        normed, _ = self.kernels.npu_gemma_rms_norm(total, obj.weight, obj.variance_epsilon)
        return normed if residual is None else (normed, total)

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
        """query [tokens, heads, head_size], key alike; new tensors, also where ``inplace`` permits otherwise."""
        chosen = rotary.route(obj, query, cos, position_ids, rotary_interleaved)
        kernel = getattr(self.kernels, chosen)
        mode = "interleave" if rotary_interleaved else "half"
        if chosen == rotary.MROPE:
            return rotary.mrope(kernel, obj.cos_sin_cache, query, key, position_ids, mode)
        cos = rotary.rows(cos, position_ids, query.dtype, rotary_interleaved)
        sin = rotary.rows(sin, position_ids, query.dtype, rotary_interleaved)
        if chosen == rotary.APPLY:
            return rotary.apply(kernel, query, key, cos, sin)
        return rotary.rotary_mul(kernel, query, cos, sin, mode), rotary.rotary_mul(kernel, key, cos, sin, mode)
