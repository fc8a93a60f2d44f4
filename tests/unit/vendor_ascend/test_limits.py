# SPDX-License-Identifier: Apache-2.0
"""The declared limits: what passes, and the reason for everything that does not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fl_vendor_ascend import limits

HALF = torch.bfloat16


def x(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def holds(verdict: bool | str, word: str | None) -> bool:
    return verdict is True if word is None else isinstance(verdict, str) and word in verdict


@pytest.mark.parametrize(
    ("tensor", "word"),
    [
        (x(8), None),
        (x(2, 3, 2), None),
        (x(*[2] * 8), None),
        (x(*[2] * 9), "1 to 8 dimensions"),
        (x(3, 5), "needs an even last dimension, x is [3, 5]"),
        (x(0, 8), "at least one element"),
        (x(8, 3).t()[:, :4], "x has strides [1, 3] for [3, 4]"),
    ],
)
def test_gated_rows(tensor, word):
    assert holds(limits.gated_rows(None, tensor), word)


@pytest.mark.parametrize(
    ("args", "word"),
    [
        ((x(3, 32),), None),
        ((x(2, 3, 32), x(2, 3, 32)), None),
        ((x(32),), "2 to 8 dimensions"),
        ((x(3, 32, dtype=torch.float32),), "x is torch.float32 and obj.weight torch.bfloat16"),
        ((x(3, 32), x(3, 32, dtype=torch.float32)), "residual torch.float32"),
        ((x(3, 40)[:, :32],), "x has strides"),
        ((x(3, 32), x(3, 40)[:, :32]), "residual has strides"),
        ((x(0, 32),), "at least one element"),
    ],
)
def test_norm_rows(args, word):
    obj = SimpleNamespace(weight=x(32), variance_epsilon=1e-6)
    assert holds(limits.norm_rows(obj, *args), word)


@pytest.mark.parametrize(("weight", "word"), [(x(8), None), (x(16)[::2], "contiguous"), (x(2, 8), "[hidden_size]")])
def test_norm_layer(weight, word):
    assert holds(limits.norm_layer(SimpleNamespace(weight=weight)), word)


PACKED = x(5, 6, 64)


@pytest.mark.parametrize(
    ("query", "key", "cache", "word"),
    [
        (x(5, 4, 64), x(5, 2, 64), x(9, 64), None),
        (PACKED[:, :4], PACKED[:, 4:], x(9, 64), None),
        (x(0, 4, 64), x(0, 2, 64), x(9, 64), "at least one token"),
        (x(5, 4, 64), x(5, 0, 64), x(9, 64), "at least one token and one head"),
        (x(5, 4, 96)[..., :64], x(2, 5, 64).transpose(0, 1), x(9, 64), None),
        (x(5, 4, 96)[..., :64], x(5, 2, 64), None, None),
        (x(5, 4, 48), x(5, 2, 48), x(9, 48), None),
        (x(5, 1000, 48), x(5, 2, 48), x(9, 48), "less than 896 elements and 1000 heads, not 48 and 1000"),
        (x(1, 999, 894), x(1, 1, 894), x(9, 894), None),
        (x(1, 1, 904), x(1, 1, 904), x(9, 904), "not 904 and 1"),
    ],
)
def test_rotary_call(query, key, cache, word):
    cos = x(9, query.shape[2] // 2)
    verdict = limits.rotary_call(SimpleNamespace(cos_sin_cache=cache), query, key, cos, cos, torch.arange(len(query)))
    assert holds(verdict, word), verdict


def test_predicates_trace_into_one_graph():
    obj = SimpleNamespace(weight=x(32), variance_epsilon=1e-6)

    def call(tensor):
        return tensor + 1 if limits.norm_rows(obj, tensor) is True else tensor

    compiled = torch.compile(call, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x(3, 32)), x(3, 32) + 1)
    torch._dynamo.reset()
