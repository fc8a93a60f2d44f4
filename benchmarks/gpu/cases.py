# SPDX-License-Identifier: Apache-2.0
"""What the micro-benchmark measures: operators in the shapes of an 8B model, and every way to call each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional

from fl_dispatch import OpImpl, OpManager, OpRegistry, SelectionError, SelectionPolicy
from fl_dispatch.discovery import discover
from fl_dispatch.facts import unavailable_reason

HIDDEN = 4096
INTERMEDIATE = 14336
HEADS, KV_HEADS, HEAD_SIZE = 32, 8, 128
MAX_POSITION = 8192
DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Inputs:
    """One call's arguments."""

    obj: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One operator in one form.

    Args:
        name: for the table.
        op: the operator.
        inputs: makes the arguments for a number of tokens.
        bytes_moved: what must be read and written for a number of tokens, each byte once.
        native: the same with torch's own operators, where there is a short way.
    """

    name: str
    op: str
    inputs: Callable[[int], Inputs]
    bytes_moved: Callable[[int], float]
    native: Callable[..., Any] | None = None


def _normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=DTYPE)


def _gated(tokens: int) -> Inputs:
    return Inputs(SimpleNamespace(), (_normal(tokens, 2 * INTERMEDIATE),))


def _norm(tokens: int, residual: bool = False) -> Inputs:
    obj = SimpleNamespace(weight=_normal(HIDDEN), variance_epsilon=1e-6)
    return Inputs(obj, tuple(_normal(tokens, HIDDEN) for _ in range(1 + residual)))


def _norm_residual(tokens: int) -> Inputs:
    return _norm(tokens, residual=True)


def _cache(dtype: torch.dtype) -> torch.Tensor:
    frequencies = 10000.0 ** -(torch.arange(0, HEAD_SIZE, 2, device="cuda") / HEAD_SIZE)
    angles = torch.outer(torch.arange(MAX_POSITION, device="cuda"), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).to(dtype)


def _rotary(tokens: int) -> Inputs:
    packed = _normal(tokens, HEADS + 2 * KV_HEADS, HEAD_SIZE)
    cache = _cache(torch.float32)  # as SGLang keeps it
    positions = torch.arange(tokens, device="cuda") % MAX_POSITION
    obj = SimpleNamespace(cos_sin_cache=cache, head_size=HEAD_SIZE, rotary_dim=HEAD_SIZE, is_neox_style=True)
    query, key = packed[:, :HEADS], packed[:, HEADS : HEADS + KV_HEADS]
    return Inputs(obj, (query, key, *cache.chunk(2, dim=-1), positions))


def _silu(obj: Any, x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return functional.silu(gate) * up


def _gelu(obj: Any, x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return functional.gelu(gate) * up


def _gelu_tanh(obj: Any, x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return functional.gelu(gate, approximate="tanh") * up


def _rms(obj: Any, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
    if residual is None:
        return functional.rms_norm(x, (HIDDEN,), obj.weight, obj.variance_epsilon)
    residual = x + residual
    return functional.rms_norm(residual, (HIDDEN,), obj.weight, obj.variance_epsilon), residual


_SIZE = DTYPE.itemsize


def _gated_bytes(tokens: int) -> float:
    return 3 * tokens * INTERMEDIATE * _SIZE


def _norm_bytes(tokens: int) -> float:
    return (2 * tokens + 1) * HIDDEN * _SIZE


def _residual_bytes(tokens: int) -> float:
    return (4 * tokens + 1) * HIDDEN * _SIZE


def _rotary_bytes(tokens: int) -> float:
    return tokens * (2 * (HEADS + KV_HEADS) * HEAD_SIZE * _SIZE + HEAD_SIZE * 4 + 8)


CASES = (
    Case("silu_and_mul", "silu_and_mul", _gated, _gated_bytes, _silu),
    Case("gelu_and_mul", "gelu_and_mul", _gated, _gated_bytes, _gelu),
    Case("gelu_tanh_and_mul", "gelu_tanh_and_mul", _gated, _gated_bytes, _gelu_tanh),
    Case("rms_norm", "rms_norm", _norm, _norm_bytes, _rms),
    Case("rms_norm, residual", "rms_norm", _norm_residual, _residual_bytes, _rms),
    Case("gemma_rms_norm", "gemma_rms_norm", _norm, _norm_bytes),
    Case("gemma_rms_norm, residual", "gemma_rms_norm", _norm_residual, _residual_bytes),
    Case("rotary_embedding", "rotary_embedding", _rotary, _rotary_bytes),
)

_REGISTRY = OpRegistry()
discover(_REGISTRY, SelectionPolicy())


def ways(case: Case, example: Inputs) -> dict[str, Callable[..., Any]]:
    """Name to function with the standard signature: torch's own operators, each usable implementation by itself, and
    each but the reference as an adapter has it, bound to a layer behind its checks ("bound").
    """
    found: dict[str, Callable[..., Any]] = {} if case.native is None else {"torch": case.native}
    for impl in sorted(_REGISTRY.get(case.op), key=lambda impl: impl.impl_id):
        if impl.available is not None and unavailable_reason(impl.available) is not None:
            continue
        found[impl.impl_id] = impl.fn
        if impl.impl_id != "reference":
            # One that may not be bound here says why in a call too, where that is its result and not the end of all others'.
            with contextlib.suppress(SelectionError):
                found[f"{impl.impl_id} (bound)"] = _bound(impl, example.obj)
    return found


def _bound(impl: OpImpl, obj: Any) -> Callable[..., Any]:
    policy = SelectionPolicy(prefer=(f"impl:{impl.impl_id}",), strict=True)
    manager = OpManager(_REGISTRY, policy, device_type="cuda")
    site = manager.bind(impl.op_name, obj, device_type="cuda", dtype="bfloat16")
    site.settle()

    def forward(*args: Any, **kwargs: Any) -> Any:
        fn = site.fn
        try:
            return fn(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  (the guard: judged in recover)
            return site.recover(error, *args, **kwargs)

    return forward
