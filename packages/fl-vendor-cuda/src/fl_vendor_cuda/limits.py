# SPDX-License-Identifier: Apache-2.0
"""What sgl_kernel's kernels can be called with, as predicates over a layer or one call: True, or the reason why not.

Outside of these limits some kernels raise, and others read wrong memory: they take a pointer and trust it. Each
predicate is one expression that answers yes; only when it does not is the reason looked for. torch.compile traces them
too, all but addresses: Dynamo knows no storage offset, and what a graph hands over begins at aligned addresses. Nothing
here copies: a call that would need a copy is refused, and the next implementation serves it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

#: Bytes that a kernel loads at once, from an address that is a multiple of it.
VECTOR = 16
#: Largest hidden size. The fused norms keep a row as float32 in shared memory, of which a block has 99 KiB on the
#: supported GPUs that have least (8.6 and 8.9).
MAX_HIDDEN = 24576
_HALF = (torch.float16, torch.bfloat16)
_HALVES = VECTOR // 2


def gated_rows(obj: Any, x: Tensor) -> bool | str:
    """Of the gated activations: contiguous, and both halves of every row begin at a multiple of 16 bytes."""
    size = x.element_size()
    if (
        x.is_contiguous()
        and not (x.shape[-1] * size) % (2 * VECTOR)
        and x.numel()
        and (is_dynamo_compiling() or not (x.storage_offset() * size) % VECTOR)
    ):
        return True
    if (x.shape[-1] * size) % (2 * VECTOR):
        return f"needs halves of a multiple of {VECTOR} bytes, x has {x.shape[-1] // 2} elements of {size} bytes a half"
    return _layout_fault("x", x)


def norm_rows(obj: Any, x: Tensor, residual: Tensor | None = None) -> bool | str:
    """Of the norms: contiguous rows, x, residual and weight of one dtype."""
    dtype = x.dtype
    if (
        x.is_contiguous()
        and obj.weight.dtype == dtype
        and x.numel()
        and (residual is None or (residual.dtype == dtype and residual.is_contiguous()))
        and (
            is_dynamo_compiling()
            # Of two bytes each, or the weight's dtype would have been refused.
            or not (x.storage_offset() % _HALVES or (residual is not None and residual.storage_offset() % _HALVES))
        )
    ):
        return True
    for name, tensor in (("obj.weight", obj.weight), ("residual", residual)):
        if tensor is not None and tensor.dtype != dtype:
            return f"needs one dtype, x is {dtype} and {name} {tensor.dtype}"
    fault = _layout_fault("x", x)
    return _layout_fault("residual", residual) if fault is True and residual is not None else fault


def norm_layer(obj: Any) -> bool | str:
    """Of the norms, once a layer: a contiguous weight of a half dtype that is not too long."""
    weight = obj.weight
    if weight.dtype not in _HALF:
        return f"needs a float16 or bfloat16 weight of x's dtype, obj.weight is {weight.dtype}"
    if weight.dim() != 1 or not weight.is_contiguous():
        return "needs a contiguous weight [hidden_size]"
    if not is_dynamo_compiling() and weight.storage_offset() % _HALVES:
        return f"needs a weight that begins at a multiple of {VECTOR} bytes"
    if len(weight) > MAX_HIDDEN:
        return f"hidden sizes up to {MAX_HIDDEN}, obj.weight has {len(weight)}"
    return True


def rotary_layer(obj: Any) -> bool | str:
    """Of rotary embedding, once a layer: the cache that cos and sin were split from."""
    cache = getattr(obj, "cos_sin_cache", None)
    if cache is None:
        return "needs obj.cos_sin_cache, the tensor that cos and sin were split from"
    if cache.dim() != 2 or not cache.is_contiguous():
        return "needs a contiguous obj.cos_sin_cache [max_position, rotary_dim]"
    return True


def packed_heads(
    obj: Any,
    query: Tensor,
    key: Tensor,
    cos: Tensor,
    sin: Tensor,
    position_ids: Tensor,
    rotary_interleaved: bool = False,
    inplace: bool = True,
) -> bool | str:
    """Of rotary embedding: heads that follow each other, tokens any distance apart, int64 positions.

    The kernel has one distance between heads for query and key, and with no tokens it divides by zero.
    """
    head_size = query.shape[2]
    _, query_head, query_element = query.stride()
    _, key_head, key_element = key.stride()
    if (
        query_element == key_element == 1
        and query_head == key_head == head_size
        and position_ids.dtype == torch.int64
        and position_ids.is_contiguous()
        and query.numel()
        and key.numel()
    ):
        return True
    if position_ids.dtype != torch.int64:
        return f"needs int64 positions, not {position_ids.dtype}"
    if not (query.numel() and key.numel()):
        return "needs at least one token and one head"
    if not position_ids.is_contiguous():
        return "needs contiguous positions"
    return "needs heads that follow each other without a gap, of contiguous elements"


def _layout_fault(name: str, tensor: Tensor) -> bool | str:
    if not tensor.numel():
        return f"needs at least one element, {name} is {list(tensor.shape)}"
    if not tensor.is_contiguous():
        return f"needs contiguous tensors, {name} has strides {list(tensor.stride())} for {list(tensor.shape)}"
    if not is_dynamo_compiling() and (tensor.storage_offset() * tensor.element_size()) % VECTOR:
        return f"needs tensors that begin at a multiple of {VECTOR} bytes, {name} does not"
    return True
