# SPDX-License-Identifier: Apache-2.0
"""The cos/sin cache in another dtype: one copy of each cache, kept as long as the original."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor


class CastCopies:
    """At most one cast copy of each cache, found by the identity of the original.

    The originals are taken to be constant, as the frameworks treat them: they grow, move or cast a cache by making
    another tensor. The kernel wants the dtype of query and key, so a copy of a float32 cache is rounded to it: by at
    most u, the dtype's unit roundoff (2**-8 in bfloat16, 2**-11 in float16), relative to each cos and sin. Each element
    of a rotated pair (a, b) turns out different by at most u * (|a cos| + |b sin|) <= u * hypot(a, b) from what the
    float32 cache would give. The operator's tolerance has room for this: the reference casts cos and sin too.
    """

    def __init__(self) -> None:
        self._copies: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}

    def __len__(self) -> int:
        return len(self._copies)

    def get(self, cache: Tensor, wanted: torch.dtype) -> Tensor:
        """``cache`` in the dtype ``wanted``, which it does not have."""
        entry = self._copies.get(id(cache))
        if entry is not None and entry[0]() is cache and entry[1].dtype == wanted:
            return entry[1]
        return self._make(cache, wanted)

    def _make(self, cache: Tensor, wanted: torch.dtype) -> Tensor:
        copy = cache.to(wanted)
        if cache.is_cuda:
            if torch.cuda.is_current_stream_capturing():
                # It is only filled when the graph is replayed, so nobody else may use it.
                return copy
            # Other streams will use it without knowing that they should wait.
            torch.cuda.current_stream(cache.device).synchronize()
        key = id(cache)
        self._copies[key] = (weakref.ref(cache, lambda _: self._copies.pop(key, None)), copy)
        return copy
