# SPDX-License-Identifier: Apache-2.0
"""What torch_npu's operators are documented to take, as predicates over a layer or one call: True, or the reason why not.

Where the documentation of torch_npu and that of CANN's operator below it differ, the narrower one holds; where both are
silent (layout, empty tensors), the careful answer does.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fl_vendor_ascend.rotary import ROTARY_MUL, route

#: Dimensions of a tensor that CANN knows.
MAX_DIM = 8
#: Of npu_rotary_mul: D < 896, B and N < 1000 (B is 1 here, so in both modes).
ROTARY_MUL_MAX_SIZE = 895
ROTARY_MUL_MAX_HEADS = 999


def gated_rows(obj: Any, x: Tensor) -> bool | str:
    """Of the gated activations: contiguous, at most 8-D, not empty."""
    if x.shape[-1] % 2:
        return f"needs an even last dimension, x is {list(x.shape)}"
    return _layout_fault("x", x, 1)


def norm_rows(obj: Any, x: Tensor, residual: Tensor | None = None) -> bool | str:
    """Of the norms: contiguous, 2-D to 8-D, not empty; x, residual and weight of one dtype."""
    for name, tensor in (("obj.weight", obj.weight), ("residual", residual)):
        if tensor is not None and tensor.dtype != x.dtype:
            return f"needs one dtype, x is {x.dtype} and {name} {tensor.dtype}"
    fault = _layout_fault("x", x, 2)
    return _layout_fault("residual", residual, 2) if fault is True and residual is not None else fault


def norm_layer(obj: Any) -> bool | str:
    """Of the norms, once a layer: one contiguous row of weights."""
    weight = obj.weight
    return True if weight.dim() == 1 and weight.is_contiguous() else "needs a contiguous weight [hidden_size]"


def rotary_call(
    obj: Any,
    query: Tensor,
    key: Tensor,
    cos: Tensor,
    sin: Tensor,
    position_ids: Tensor,
    rotary_interleaved: bool = False,
    inplace: bool = True,
) -> bool | str:
    """Of rotary embedding: at least one token and head; the rest depends on which operator the call goes to."""
    if not (query.numel() and key.numel()):
        return "needs at least one token and one head"
    if route(obj, query, cos, position_ids, rotary_interleaved) == ROTARY_MUL:
        heads = max(query.shape[1], key.shape[1])
        if 2 * cos.shape[1] > ROTARY_MUL_MAX_SIZE or heads > ROTARY_MUL_MAX_HEADS:
            return f"{ROTARY_MUL} takes less than 896 elements and 1000 heads, not {2 * cos.shape[1]} and {heads}"
    return True


def _layout_fault(name: str, tensor: Tensor, least: int) -> bool | str:
    if not least <= tensor.dim() <= MAX_DIM:
        return f"needs {least} to {MAX_DIM} dimensions, {name} is {list(tensor.shape)}"
    if not tensor.numel():
        return f"needs at least one element, {name} is {list(tensor.shape)}"
    if not tensor.is_contiguous():
        return f"needs contiguous tensors, {name} has strides {list(tensor.stride())} for {list(tensor.shape)}"
    return True
