# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from fl_dispatch.ops.inputs import Draw, missing_field, no_common_device, no_float_tensor, shape_of, transposed
from fl_dispatch.ops.spec import Field, OpSpec, Sample, Tolerance

FIELDS: tuple[Field, ...] = (
    Field(
        "cos_sin_cache",
        "[max_position, rotary_dim], cos in the first half of the columns and sin in the second: the tensor that cos "
        "and sin were split from, for kernels that take it whole; dtype as the layer keeps it; None: join cos and sin",
        default=None,
    ),
    Field("head_size", "int, equal to query.shape[-1]", default=None),
    Field("rotary_dim", "int, equal to 2 * cos.shape[-1]", default=None),
    Field("is_neox_style", "bool, equal to not rotary_interleaved", default=None),
)


def rotary_embedding_reference(
    obj: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    position_ids: torch.Tensor,
    rotary_interleaved: bool = False,
    inplace: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate pairs of elements of every head by an angle that depends on the position (Su et al. 2021,
    arXiv:2104.09864, section 3.2.2; layout of the pairs as in GPT-J or GPT-NeoX).

    A pair (a, b) of a token at position p becomes ``(a * cos[p, i] - b * sin[p, i], b * cos[p, i] + a * sin[p, i])``.

    Args:
        obj: the layer; the reference reads nothing of it. Its fields repeat what the arguments say, for kernels that
            want the fused cache.
        query: [tokens, heads, head_size], floating point.
        key: [tokens, kv_heads, head_size], query's dtype.
        cos, sin: [max_position, rotary_dim / 2], floating point; cast to query's dtype, and every product and sum is
            rounded to that dtype, as in SGLang's and vLLM's native forward. Elements of a head from rotary_dim on are
            returned as they are.
        position_ids: [tokens], int32 or int64, each in [0, max_position). Not checked: it would wait for the device.
        rotary_interleaved: False: element i is paired with element i + rotary_dim / 2 (NeoX). True: element 2i with
            element 2i + 1 (GPT-J).
        inplace: True permits an implementation to write its results into query and key. Callers use the returned
            tensors either way. The reference never writes to its arguments.

    Returns:
        (query, key), shapes and dtypes as given.

    Raises:
        IndexError: a position is out of range, where the device reports it.
        RuntimeError: shapes that do not fit together.
    """
    cos = cos.index_select(0, position_ids).unsqueeze(1)
    sin = sin.index_select(0, position_ids).unsqueeze(1)
    return _rotate(query, cos, sin, rotary_interleaved), _rotate(key, cos, sin, rotary_interleaved)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """x: [tokens, heads, head_size]; cos, sin: [tokens, 1, rotary_dim / 2]."""
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    rotary_dim = 2 * cos.shape[-1]
    turning, rest = x[..., :rotary_dim], x[..., rotary_dim:]
    if interleaved:
        a, b = turning[..., 0::2], turning[..., 1::2]
    else:
        a, b = turning.chunk(2, dim=-1)
    new_a = a * cos - b * sin
    new_b = b * cos + a * sin
    if not interleaved:
        return torch.cat((new_a, new_b, rest), dim=-1)
    pairs = torch.stack((new_a, new_b), dim=-1).flatten(-2)
    return torch.cat((pairs, rest), dim=-1) if rest.shape[-1] else pairs


def check(
    obj: Any,
    query: Any,
    key: Any,
    cos: Any,
    sin: Any,
    position_ids: Any,
    rotary_interleaved: bool = False,
    inplace: bool = True,
) -> str | None:
    """What is wrong with a call, or None. Positions are not read."""
    problem = (
        missing_field("rotary_embedding", obj, FIELDS)
        or no_float_tensor("query", query)
        or no_float_tensor("key", key)
        or no_float_tensor("cos", cos)
        or no_float_tensor("sin", sin)
    )
    if problem:
        return problem
    if not isinstance(position_ids, torch.Tensor) or position_ids.dtype not in (torch.int32, torch.int64):
        found = position_ids.dtype if isinstance(position_ids, torch.Tensor) else type(position_ids).__name__
        return f"position_ids must be an int32 or int64 tensor, not {found}"
    for name, tensor in (("query", query), ("key", key)):
        if tensor.dim() != 3:
            return f"{name} must be [tokens, heads, head_size]; it is {shape_of(tensor)}"
    if position_ids.dim() != 1 or not len(position_ids) == len(query) == len(key):
        return (
            "position_ids must be [tokens], as many as query and key have; "
            f"position_ids is {shape_of(position_ids)}, query {shape_of(query)}, key {shape_of(key)}"
        )
    if query.shape[-1] != key.shape[-1]:
        return f"query and key must have one head_size; query is {shape_of(query)}, key {shape_of(key)}"
    if query.dtype != key.dtype:
        return f"query and key must have one dtype; query is {query.dtype}, key {key.dtype}"
    if cos.dim() != 2 or cos.shape != sin.shape or cos.dtype != sin.dtype:
        return (
            "cos and sin must both be [max_position, rotary_dim / 2] of one dtype; "
            f"cos is {shape_of(cos)} {cos.dtype}, sin {shape_of(sin)} {sin.dtype}"
        )
    if 2 * cos.shape[-1] > query.shape[-1]:
        return f"rotary_dim {2 * cos.shape[-1]} (cos is {shape_of(cos)}) exceeds head_size (query is {shape_of(query)})"
    return no_common_device(query=query, key=key, cos=cos, sin=sin, position_ids=position_ids)


_MAX_POSITION = 128


def samples(dtype: torch.dtype, device: str, seed: int) -> Iterator[Sample]:
    """Calls that every implementation must get right. Elements that are rotated by more than nothing are <= 4."""
    draw = Draw(dtype, device, seed)

    def sample(
        label: str,
        tokens: int = 17,
        heads: int = 4,
        kv_heads: int = 2,
        head_size: int = 64,
        rotary_dim: int | None = None,
        interleaved: bool = False,
        inplace: bool = True,
        cache_dtype: torch.dtype = dtype,
        query: torch.Tensor | None = None,
        key: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
    ) -> Sample:
        rotary_dim = rotary_dim or head_size
        frequencies = 10000.0 ** -(torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)
        angles = torch.outer(torch.arange(_MAX_POSITION, dtype=torch.float64), frequencies)
        cache = torch.cat((angles.cos(), angles.sin()), dim=-1).to(cache_dtype).to(device)
        cos, sin = cache.chunk(2, dim=-1)
        # As a model gives them: query and key are slices of one packed projection, so heads are contiguous, tokens not.
        packed = draw.normal(tokens, heads + 2 * kv_heads, head_size)
        query = packed[:, :heads] if query is None else query
        key = packed[:, heads : heads + kv_heads] if key is None else key
        # At most as many positions to draw from as tokens: some are repeated, and in no order.
        if position_ids is None:
            position_ids = draw.integers(tokens, high=min(_MAX_POSITION, max(8, tokens)))
        obj = SimpleNamespace(
            cos_sin_cache=cache, head_size=head_size, rotary_dim=rotary_dim, is_neox_style=not interleaved
        )
        kwargs = {"rotary_interleaved": interleaved, "inplace": inplace}
        return Sample(label, obj, (query, key, cos, sin, position_ids), kwargs)

    for interleaved, style in ((False, "neox"), (True, "interleaved")):
        for tokens in (0, 1, 3, 17, 256):
            yield sample(f"{style}, {tokens} tokens", tokens=tokens, interleaved=interleaved)
        for head_size in (64, 80, 96, 128):
            for inplace in (True, False):
                label = f"{style}, head_size={head_size}, inplace={inplace}"
                yield sample(label, head_size=head_size, interleaved=interleaved, inplace=inplace)
        for head_size, rotary_dim in ((128, 64), (80, 32), (96, 24)):
            label = f"{style}, partial: rotary_dim={rotary_dim} of {head_size}"
            yield sample(label, head_size=head_size, rotary_dim=rotary_dim, interleaved=interleaved)
        yield sample(f"{style}, one kv head of 8", heads=8, kv_heads=1, interleaved=interleaved)
        yield sample(f"{style}, as many kv heads", heads=3, kv_heads=3, interleaved=interleaved)
        yield sample(f"{style}, float32 cache", interleaved=interleaved, cache_dtype=torch.float32)
        # Position 0 turns by nothing: exact whatever the magnitude, and no product may overflow.
        yield sample(
            f"{style}, large magnitudes at position 0",
            tokens=3,
            interleaved=interleaved,
            query=draw.signed(3, 4, 64, low=1e3, high=6e4),
            key=draw.signed(3, 2, 64, low=1e3, high=6e4),
            position_ids=draw.integers(3, high=1),
        )
    for label, scale, layout in (
        ("tiny magnitudes", 2.0**-10, torch.Tensor.contiguous),
        ("contiguous", 1.0, torch.Tensor.contiguous),
        ("heads first in memory", 1.0, transposed),
    ):
        query, key = (layout(draw.normal(17, heads, 64, scale=scale)) for heads in (4, 2))
        yield sample(label, query=query, key=key)
    yield sample("one position for all", position_ids=torch.full((17,), 5, device=device))
    yield sample("positions descending", position_ids=torch.arange(16, -1, -1, device=device))
    yield sample("int32 positions", position_ids=draw.integers(17, high=64, dtype=torch.int32))


def _tolerance(unit_roundoff: float, name: str) -> Tolerance:
    # |a cos| + |b sin| <= hypot(a, b) <= 4 sqrt(2) = 5.66 for the samples.
    return Tolerance(
        1.02 * unit_roundoff,
        2 * 1.02 * unit_roundoff * 5.66,
        f"the sum is rounded relative to itself; cos or sin and the product are rounded: 2 x {name} x hypot(a, b)",
    )


SPECS: tuple[OpSpec, ...] = (
    OpSpec(
        name="rotary_embedding",
        reference=rotary_embedding_reference,
        summary="rotary position embedding of query and key, NeoX or GPT-J pairs, whole or part of a head",
        fields=FIELDS,
        may_mutate=frozenset({"query", "key"}),
        by_row=frozenset({"query", "key", "position_ids"}),
        check=check,
        samples=samples,
        tolerances={
            "float32": _tolerance(2.0**-24, "2**-24"),
            "float16": _tolerance(2.0**-11, "2**-11"),
            "bfloat16": _tolerance(2.0**-8, "2**-8"),
        },
    ),
)
