# SPDX-License-Identifier: Apache-2.0
"""The check of ``calls_checked`` fails for wrong calls of every operator, and for the reason that is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from calls_checked import DTYPES, check_all
from npu_stand_in import OPERATORS, Kernels

from fl_vendor_ascend import sdk
from fl_vendor_ascend.operators import _DECLARED

Change = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class Mutated(Kernels):
    """The stand-in, called otherwise than the backend calls it in one function."""

    def __init__(self, function: str, change: Change) -> None:
        self.function, self.change = function, change

    def __getattr__(self, name: str) -> Any:
        kernel = super().__getattr__(name)
        if name != self.function:
            return kernel
        return lambda *args, **kwargs: self.change(kernel, args, kwargs)


def swapped(i: int, j: int) -> Change:
    def change(kernel: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        mixed = list(args)
        mixed[i], mixed[j] = mixed[j], mixed[i]
        return kernel(*mixed, **kwargs)

    return change


def with_keywords(**other: Any) -> Change:
    return lambda kernel, args, kwargs: kernel(*args, **{**kwargs, **other})


def renamed(name: str | int, other: str) -> Change:
    """An argument, by keyword or by place, given by another keyword."""

    def change(kernel: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        kept, named = list(args), dict(kwargs)
        value = kept.pop(name) if isinstance(name, int) else named.pop(name)
        return kernel(*kept, **named, **{other: value})

    return change


def without_keyword(name: str) -> Change:
    return lambda kernel, args, kwargs: kernel(*args, **{key: value for key, value in kwargs.items() if key != name})


def without_argument(i: int) -> Change:
    return lambda kernel, args, kwargs: kernel(*args[:i], *args[i + 1 :], **kwargs)


def in_another_place(name: str) -> Change:
    """A keyword, by place: the schema decides whether that may be."""
    return lambda kernel, args, kwargs: kernel(*args, kwargs[name], **{k: v for k, v in kwargs.items() if k != name})


def without_last_result(kernel: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    out = kernel(*args, **kwargs)
    return out[:-1] if isinstance(out, tuple) else None


def other_result(i: int) -> Change:
    """Two results taken for each other."""

    def change(kernel: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = list(kernel(*args, **kwargs))
        out[0], out[i] = out[i], out[0]
        return tuple(out)

    return change


UNKNOWN = "Unknown keyword argument"
UNPACK = "not enough values to unpack"
NUMBERS = "numbers are off"
#: Function, what is wrong, the change, and what the check must say of it.
MUTATIONS: list[tuple[str, str, Change, str]] = [
    (
        "npu_swiglu",
        "dimension and tensor swapped",
        lambda k, a, kw: k(kw["dim"], a[0]),
        "Expected a value of type 'Tensor",
    ),
    ("npu_swiglu", "wrong keyword", renamed("dim", "axis"), UNKNOWN),
    ("npu_swiglu", "no result", without_last_result, "NoneType"),
    ("npu_swiglu", "another dimension", with_keywords(dim=0), "size of self in dim even|torch.Size"),
    (
        "npu_geglu",
        "dimension and tensor swapped",
        lambda k, a, kw: k(kw["dim"], *a),
        "Expected a value of type 'Tensor",
    ),
    ("npu_geglu", "wrong keyword", renamed("dim", "axis"), UNKNOWN),
    ("npu_geglu", "missing result", without_last_result, UNPACK),
    ("npu_geglu", "results swapped", other_result(1), NUMBERS),
    ("npu_geglu", "gelu of the other half", without_keyword("activate_left"), NUMBERS),
    ("npu_geglu", "approximation as text", with_keywords(approximate="tanh"), "Expected a value of type 'int'"),
    ("npu_rms_norm", "x and weight swapped", swapped(0, 1), "self 2-D to 8-D"),
    ("npu_rms_norm", "weight and epsilon swapped", swapped(1, 2), "Expected a value of type 'Tensor"),
    ("npu_rms_norm", "wrong keyword", renamed(2, "eps"), UNKNOWN),
    (
        "npu_rms_norm",
        "missing argument",
        without_argument(1),
        "missing value for argument|Expected a value of type 'Tensor",
    ),
    ("npu_rms_norm", "missing result", without_last_result, UNPACK),
    ("npu_rms_norm", "results swapped", other_result(1), "torch.Size|torch.float32"),
    ("npu_rms_norm", "epsilon left out", without_argument(2), NUMBERS),
    ("npu_add_rms_norm", "residual and weight swapped", swapped(1, 2), "x2 of x1's shape and dtype"),
    ("npu_add_rms_norm", "wrong keyword", renamed(3, "eps"), UNKNOWN),
    ("npu_add_rms_norm", "missing result", without_last_result, UNPACK),
    ("npu_add_rms_norm", "results swapped", other_result(2), NUMBERS),
    ("npu_add_rms_norm", "epsilon left out", without_argument(3), NUMBERS),
    ("npu_gemma_rms_norm", "x and weight swapped", swapped(0, 1), "gamma is the last dimensions of self"),
    ("npu_gemma_rms_norm", "wrong keyword", renamed(2, "eps"), UNKNOWN),
    ("npu_gemma_rms_norm", "missing result", without_last_result, UNPACK),
    ("npu_rotary_mul", "cos and sin swapped", swapped(1, 2), NUMBERS),
    ("npu_rotary_mul", "x and cos swapped", swapped(0, 1), "BSND"),
    ("npu_rotary_mul", "wrong keyword", renamed(3, "mode"), UNKNOWN),
    ("npu_rotary_mul", "no result", without_last_result, "NoneType"),
    ("npu_rotary_mul", "style left out", without_argument(3), NUMBERS),
    ("npu_apply_rotary_pos_emb", "key and cos swapped", swapped(1, 2), "cos and sin"),
    ("npu_apply_rotary_pos_emb", "query and key swapped", swapped(0, 1), "torch.Size"),
    ("npu_apply_rotary_pos_emb", "cos and sin swapped", swapped(2, 3), NUMBERS),
    ("npu_apply_rotary_pos_emb", "wrong keyword", renamed("layout", "input_layout"), UNKNOWN),
    ("npu_apply_rotary_pos_emb", "missing result", without_last_result, "index out of range"),
    ("npu_mrope", "positions and query swapped", swapped(0, 1), "plain rotary"),
    ("npu_mrope", "query and key swapped", swapped(1, 2), "is invalid for input of size"),
    ("npu_mrope", "wrong keyword", renamed("rotary_mode", "mode"), UNKNOWN),
    ("npu_mrope", "section by place", in_another_place("mrope_section"), "positional argument"),
    ("npu_mrope", "missing result", without_last_result, "index out of range"),
    ("npu_mrope", "style left out", without_keyword("rotary_mode"), NUMBERS),
]
OPERATOR_OF = {
    "npu_swiglu": "silu_and_mul",
    "npu_geglu": "gelu_and_mul",
    "npu_rms_norm": "rms_norm",
    "npu_add_rms_norm": "rms_norm",
    "npu_gemma_rms_norm": "gemma_rms_norm",
    "npu_rotary_mul": "rotary_embedding",
    "npu_apply_rotary_pos_emb": "rotary_embedding",
    "npu_mrope": "rotary_embedding",
}


@pytest.mark.parametrize(
    ("function", "what", "change", "says"), MUTATIONS, ids=[f"{f}: {w}" for f, w, _, _ in MUTATIONS]
)
def test_a_wrong_call_fails_the_check(impls, npu, monkeypatch, function, what, change, says):
    monkeypatch.setattr(sdk, "load", lambda: Mutated(function, change))
    impl = impls[OPERATOR_OF[function]]
    with pytest.raises(Exception) as error:
        # Some operators get calls in some dtypes only.
        assert sum(check_all(impl, dtype) for dtype in (torch.float32, torch.bfloat16)) < 0, "nothing found"
    assert re.search(says, str(error.value)), f"{type(error.value).__name__}: {error.value}"


def test_a_call_that_is_not_changed_passes(impls, npu, monkeypatch):
    for function, op in OPERATOR_OF.items():
        monkeypatch.setattr(
            sdk, "load", lambda name=function: Mutated(name, lambda k, args, kwargs: k(*args, **kwargs))
        )
        impls[op].fn.__self__.__dict__.pop("kernels", None)
        assert check_all(impls[op], torch.bfloat16) > 0


def test_every_function_that_is_called_has_a_swap_a_wrong_keyword_and_a_missing_result():
    called = {function for functions, _ in _DECLARED.values() for function in functions}
    assert called == set(OPERATORS) == set(OPERATOR_OF)
    for word in ("swapped", "wrong keyword", "result"):
        assert {function for function, what, _, _ in MUTATIONS if word in what} == called
    assert len(DTYPES) == 3
