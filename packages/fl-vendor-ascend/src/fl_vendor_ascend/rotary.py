# SPDX-License-Identifier: Apache-2.0
"""Rotary embedding: which of torch_npu's three operators takes a call, and the call.

================================  ==========================================================================================
operator                          what it is used for
================================  ==========================================================================================
``npu_mrope``                     both styles, whole or part of a head; looks the positions up itself. Needs the fused cache
                                  in query's dtype, int64 positions, head_size and rotary_dim multiples of 32 (16 in float32)
``npu_apply_rotary_pos_emb``      NeoX style, a whole head of 64 or 128, where the cache does not fit ``npu_mrope``
``npu_rotary_mul``                everything else, one tensor a call
================================  ==========================================================================================
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MROPE = "npu_mrope"
APPLY = "npu_apply_rotary_pos_emb"
ROTARY_MUL = "npu_rotary_mul"
FUNCTIONS = (MROPE, APPLY, ROTARY_MUL)

_APPLY_SIZES = (64, 128)


def route(obj: Any, query: Tensor, cos: Tensor, position_ids: Tensor, interleaved: bool) -> str:
    """The name of the operator. Depends on shapes, dtypes and style alone."""
    head_size, rotary_dim = query.shape[2], 2 * cos.shape[1]
    step = 16 if query.dtype == torch.float32 else 32
    cache = getattr(obj, "cos_sin_cache", None)
    if (
        cache is not None
        and cache.dtype == query.dtype
        and position_ids.dtype == torch.int64
        and not (head_size % step or rotary_dim % step)
    ):
        return MROPE
    if not interleaved and head_size == rotary_dim and head_size in _APPLY_SIZES:
        return APPLY
    return ROTARY_MUL


def mrope(
    kernel: Any, cache: Tensor, query: Tensor, key: Tensor, positions: Tensor, mode: str
) -> tuple[Tensor, Tensor]:
    """One-dimensional positions and a section of zeros say that it is the plain rotary embedding. Heads that do not follow
    each other are copied by ``flatten``."""
    turned: list[Tensor] = kernel(
        positions,
        query.flatten(1),
        key.flatten(1),
        cache,
        query.shape[2],
        mrope_section=[0, 0, 0],
        rotary_mode=mode,
    )
    return turned[0].view(query.shape), turned[1].view(key.shape)


def apply(kernel: Any, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The kernel is documented to write to query and key, though its schema does not say so: it gets copies."""
    query, key = (x.clone(memory_format=torch.contiguous_format).unsqueeze(0) for x in (query, key))
    turned: list[Tensor] = kernel(query, key, cos, sin, layout="BSND")
    return turned[0].squeeze(0), turned[1].squeeze(0)


def rotary_mul(kernel: Any, x: Tensor, cos: Tensor, sin: Tensor, mode: str) -> Tensor:
    """x [tokens, heads, head_size]; the part of the head behind rotary_dim is put back as it was."""
    rotary_dim = cos.shape[-1]
    turning = x[..., :rotary_dim].contiguous().unsqueeze(0)
    turned: Tensor = kernel(turning, cos, sin, mode).squeeze(0)
    return torch.cat((turned, x[..., rotary_dim:]), dim=-1) if rotary_dim < x.shape[-1] else turned


def rows(table: Tensor, positions: Tensor, dtype: torch.dtype, interleaved: bool) -> Tensor:
    """cos or sin of each token for both elements of each pair, as BSND: [1, tokens, 1, rotary_dim]."""
    found = table.index_select(0, positions).to(dtype)
    both = found.repeat_interleave(2, dim=-1) if interleaved else torch.cat((found, found), dim=-1)
    return both[None, :, None, :]
