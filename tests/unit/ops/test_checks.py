# SPDX-License-Identifier: Apache-2.0
"""What check() says about malformed calls: one sentence, with what was found."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from comparing import SPECS


def verdict(name: str, *args: Any, **kwargs: Any) -> str | None:
    check = SPECS[name].check
    assert check is not None
    return check(*args, **kwargs)


@pytest.mark.parametrize("name", ["silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul"])
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.ones(3, 5), "the last dimension of x must be even, gate and up side by side; x is [3, 5]"),
        (torch.tensor(1.0), "the last dimension of x must be even, gate and up side by side; x is []"),
        (torch.ones(3, 4, dtype=torch.int64), "x must have a floating point dtype, not torch.int64"),
        ([1.0, 2.0], "x must be a tensor, not list"),
    ],
)
def test_activation_is_told(name: str, x: Any, message: str) -> None:
    assert verdict(name, None, x) == message


def layer(**change: Any) -> SimpleNamespace:
    return SimpleNamespace(**({"weight": torch.ones(8), "variance_epsilon": 1e-6} | change))


X = torch.ones(3, 8)


@pytest.mark.parametrize("name", ["rms_norm", "gemma_rms_norm"])
@pytest.mark.parametrize(
    ("obj", "args", "message"),
    [
        (
            layer(weight=torch.ones(7)),
            (X,),
            "obj.weight must be [hidden_size] and x [..., hidden_size]; obj.weight is [7], x [3, 8]",
        ),
        (
            layer(weight=torch.ones(1, 8)),
            (X,),
            "obj.weight must be [hidden_size] and x [..., hidden_size]; obj.weight is [1, 8], x [3, 8]",
        ),
        (layer(weight=torch.ones(8).int()), (X,), "obj.weight must have a floating point dtype, not torch.int32"),
        (layer(), (X.long(),), "x must have a floating point dtype, not torch.int64"),
        (layer(), (None,), "x must be a tensor, not NoneType"),
        (layer(), (X, X[:2]), "residual must have x's shape; residual is [2, 8], x [3, 8]"),
        (layer(), (X, X.long()), "residual must have a floating point dtype, not torch.int64"),
        (layer(), (X, X.to("meta")), "x is on cpu but residual is on meta"),
        (layer(weight=torch.ones(8, device="meta")), (X,), "x is on cpu but obj.weight is on meta"),
    ],
)
def test_norm_is_told(name: str, obj: Any, args: tuple[Any, ...], message: str) -> None:
    assert verdict(name, obj, *args) == message


@pytest.mark.parametrize("name", ["rms_norm", "gemma_rms_norm"])
def test_norm_is_told_which_field_is_missing(name: str) -> None:
    found = verdict(name, SimpleNamespace(weight=torch.ones(8), eps=1e-6), X)
    assert found == (
        f"{name} reads obj.variance_epsilon (float, added to the mean of squares), "
        "but SimpleNamespace has no such attribute"
    )


@pytest.mark.parametrize("name", ["rms_norm", "gemma_rms_norm"])
def test_norm_is_told_that_the_weight_is_none(name: str) -> None:
    found = verdict(name, layer(weight=None), X)
    assert found is not None
    assert found.startswith(f"{name} reads obj.weight (")
    assert found.endswith("but it is None")


def rotary_call(**change: Any) -> tuple[Any, ...]:
    given = {
        "query": torch.ones(3, 4, 8),
        "key": torch.ones(3, 2, 8),
        "cos": torch.ones(16, 4),
        "sin": torch.ones(16, 4),
        "position_ids": torch.arange(3),
    }
    return (SimpleNamespace(), *(given | change).values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.ones(3, 32)}, "query must be [tokens, heads, head_size]; it is [3, 32]"),
        ({"key": torch.ones(3, 16)}, "key must be [tokens, heads, head_size]; it is [3, 16]"),
        ({"query": torch.ones(3, 4, 8).int()}, "query must have a floating point dtype, not torch.int32"),
        ({"key": None}, "key must be a tensor, not NoneType"),
        ({"sin": torch.ones(16, 4).long()}, "sin must have a floating point dtype, not torch.int64"),
        ({"position_ids": torch.ones(3)}, "position_ids must be an int32 or int64 tensor, not torch.float32"),
        ({"position_ids": 0}, "position_ids must be an int32 or int64 tensor, not int"),
        (
            {"position_ids": torch.arange(4)},
            "position_ids must be [tokens], as many as query and key have; "
            "position_ids is [4], query [3, 4, 8], key [3, 2, 8]",
        ),
        (
            {"position_ids": torch.zeros(3, 3).long()},
            "position_ids must be [tokens], as many as query and key have; "
            "position_ids is [3, 3], query [3, 4, 8], key [3, 2, 8]",
        ),
        (
            {"key": torch.ones(3, 2, 16)},
            "query and key must have one head_size; query is [3, 4, 8], key [3, 2, 16]",
        ),
        (
            {"key": torch.ones(3, 2, 8).half()},
            "query and key must have one dtype; query is torch.float32, key torch.float16",
        ),
        (
            {"sin": torch.ones(16, 3)},
            "cos and sin must both be [max_position, rotary_dim / 2] of one dtype; "
            "cos is [16, 4] torch.float32, sin [16, 3] torch.float32",
        ),
        (
            {"cos": torch.ones(16, 5), "sin": torch.ones(16, 5)},
            "rotary_dim 10 (cos is [16, 5]) exceeds head_size (query is [3, 4, 8])",
        ),
        ({"position_ids": torch.arange(3, device="meta")}, "query is on cpu but position_ids is on meta"),
    ],
)
def test_rotary_is_told(change: dict[str, Any], message: str) -> None:
    assert verdict("rotary_embedding", *rotary_call(**change)) == message


def test_rotary_takes_a_cache_of_another_dtype() -> None:
    change = {"cos": torch.ones(16, 4).half(), "sin": torch.ones(16, 4).half()}
    assert verdict("rotary_embedding", *rotary_call(**change)) is None


def test_rotary_does_not_read_positions() -> None:
    given = {name: torch.ones(shape, device="meta") for name, shape in (("cos", (16, 4)), ("sin", (16, 4)))}
    given |= {"query": torch.ones(3, 4, 8, device="meta"), "key": torch.ones(3, 2, 8, device="meta")}
    assert verdict("rotary_embedding", *rotary_call(**given, position_ids=torch.arange(3, device="meta"))) is None
