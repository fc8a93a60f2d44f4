# SPDX-License-Identifier: Apache-2.0
"""A stand-in for torch_npu: its operators on the CPU, behind its own schemas.

Every operator is defined in the dispatcher's namespace ``npu`` with the schema that torch_npu ships, so that torch itself
checks names, order, keywords, types and the number of results of a call. What the documentation limits is checked here,
then the documented formula is computed in float32. The meta kernels give the shapes that torch_npu's own give.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

FACTS: dict[str, Any] = tomllib.loads((Path(__file__).parent / "torch_npu_operators.toml").read_text())
OPERATORS: dict[str, Any] = FACTS["operators"]
FLOATS = (torch.float16, torch.bfloat16, torch.float32)


class OutsideTheDocumentation(Exception):
    """A call that the schema permits and the documentation does not."""


def need(condition: bool, what: str) -> None:
    if not condition:
        raise OutsideTheDocumentation(what)


# -- the formulas


def npu_swiglu(self: torch.Tensor, dim: int = -1) -> torch.Tensor:
    need(1 <= self.dim() <= 8, "self 1-D to 8-D")
    need(self.shape[dim] % 2 == 0, "size of self in dim even")
    a, b = self.float().chunk(2, dim)
    return (a * torch.sigmoid(a) * b).to(self.dtype)


def npu_geglu(
    self: torch.Tensor, dim: int = -1, approximate: int = 1, activate_left: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    need(1 <= self.dim() <= 8, "self 1-D to 8-D")
    need(self.shape[dim] % 2 == 0, "size of self in dim even")
    need(approximate in (0, 1), "approximate 0 or 1")
    a, b = self.float().chunk(2, dim)
    gate, up = (a, b) if activate_left else (b, a)
    active = functional.gelu(gate, approximate="tanh" if approximate else "none")
    return (active * up).to(self.dtype), active.to(self.dtype)


def _norm(x: torch.Tensor, gamma: torch.Tensor, epsilon: float, offset: float, least: int) -> tuple[torch.Tensor, ...]:
    need(least <= x.dim() <= 8, f"self {least}-D to 8-D")
    need(gamma.dtype == x.dtype, "gamma of self's dtype")
    need(
        gamma.dim() < x.dim() and x.shape[x.dim() - gamma.dim() :] == gamma.shape,
        "gamma is the last dimensions of self",
    )
    dims = tuple(range(x.dim() - gamma.dim(), x.dim()))
    rstd = torch.rsqrt(x.float().square().mean(dims, keepdim=True) + epsilon)
    return (x.float() * rstd * (gamma.float() + offset)).to(x.dtype), rstd


def npu_rms_norm(self: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-06) -> tuple[torch.Tensor, ...]:
    return _norm(self, gamma, epsilon, 0.0, 2)


def npu_gemma_rms_norm(self: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-06) -> tuple[torch.Tensor, ...]:
    need(self.is_contiguous() and gamma.is_contiguous(), "contiguous")
    need(self.numel() > 0, "not empty")
    return _norm(self, gamma, epsilon, 1.0, 1)


def npu_add_rms_norm(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-06
) -> tuple[torch.Tensor, ...]:
    need(x1.numel() > 0, "not empty")
    need(x1.shape == x2.shape and x1.dtype == x2.dtype, "x2 of x1's shape and dtype")
    total = (x1.float() + x2.float()).to(x1.dtype)
    return *_norm(total, gamma, epsilon, 0.0, 1), total


def npu_rotary_mul(
    self: torch.Tensor,
    r1: torch.Tensor,
    r2: torch.Tensor,
    rotary_mode: str = "half",
    rotate: torch.Tensor | None = None,
) -> torch.Tensor:
    need(self.dim() == r1.dim() == r2.dim() == 4, "4-D")
    batch, tokens, heads, size = self.shape
    need(size % 2 == 0 and size < 896, "last dimension even and < 896")
    need(rotary_mode in ("half", "interleave"), "half or interleave")
    need(max(batch, heads) < 1000 and (rotary_mode == "half" or batch * heads < 1000), "B and N < 1000")
    need(r1.shape == r2.shape == (1, tokens, 1, size), "BSND: r1 and r2 1S1D")
    need(self.dtype == r1.dtype == r2.dtype, "one dtype")
    need(rotate is None, "no rotation matrix is used")
    return _rotate(self, r1, r2, rotary_mode == "interleave")


def npu_apply_rotary_pos_emb(
    query: torch.Tensor,
    key: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    layout: str = "BSND",
    rotary_mode: str = "half",
) -> tuple[torch.Tensor, torch.Tensor]:
    need(layout == "BSND" and query.dim() == key.dim() == cos.dim() == sin.dim() == 4, "BSND 4-D")
    need(rotary_mode == "half", "half")
    need(query.shape[3] == key.shape[3] and query.shape[3] in (64, 128), "D 64 or 128")
    need(cos.shape == sin.shape == (*query.shape[:2], 1, query.shape[3]), "cos and sin [B, S, 1, D]")
    need(query.shape[:2] == key.shape[:2], "query and key have one B and S")
    need(query.dtype == key.dtype == cos.dtype == sin.dtype, "one dtype")
    need(query.numel() > 0 and key.numel() > 0, "not empty")
    query.copy_(_rotate(query, cos, sin, False))
    key.copy_(_rotate(key, cos, sin, False))
    # As after a kernel in place: torch wants outputs that are no inputs of an operator whose schema has no aliases.
    return query.clone(), key.clone()


def npu_mrope(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    head_size: int,
    *,
    mrope_section: list[int] | None = None,
    rotary_mode: str | None = "half",
    cache_mode: str | None = "default",
) -> tuple[torch.Tensor, torch.Tensor]:
    need(positions.dim() == 1 and list(mrope_section or [0, 0, 0]) == [0, 0, 0], "plain rotary")
    need(positions.dtype == torch.int64, "positions int64")
    need(query.dim() == key.dim() == cos_sin_cache.dim() == 2, "2-D")
    need(query.dtype == key.dtype == cos_sin_cache.dtype, "one dtype")
    need(len(positions) == len(query) == len(key) > 0, "one position a token, not empty")
    need(rotary_mode in ("half", "interleave") and cache_mode == "default", "modes")
    rotary_dim, step = cos_sin_cache.shape[1], 16 if query.dtype == torch.float32 else 32
    need(not (head_size % step or rotary_dim % step) and rotary_dim <= head_size, f"multiples of {step}")
    cos, sin = cos_sin_cache[positions].chunk(2, dim=-1)
    if rotary_mode == "half":
        wide = [torch.cat((half, half), -1) for half in (cos, sin)]
    else:
        wide = [half.repeat_interleave(2, dim=-1) for half in (cos, sin)]
    out = []
    for x in (query, key):
        heads = x.unflatten(1, (-1, head_size)).clone()
        part = heads[None, ..., :rotary_dim]
        heads[..., :rotary_dim] = _rotate(part, *(r[None, :, None] for r in wide), rotary_mode == "interleave")[0]
        out.append(heads.flatten(1))
    return out[0], out[1]


def _rotate(x: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, interleaved: bool) -> torch.Tensor:
    wide = x.float()
    if interleaved:
        turned = torch.stack((-wide[..., 1::2], wide[..., ::2]), dim=-1).flatten(-2)
    else:
        first, second = wide.chunk(2, -1)
        turned = torch.cat((-second, first), -1)
    return (r1.float() * wide + r2.float() * turned).to(x.dtype)


FORMULAS: dict[str, Callable[..., Any]] = {name: globals()[name] for name in OPERATORS}

# -- the dispatcher


def results_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """Empty tensors of the shapes and dtypes that torch_npu's meta kernel gives."""
    schema = torch._C.parse_schema(f"npu::{OPERATORS[name]['schema']}")
    given = {argument.name: argument.default_value for argument in schema.arguments}
    given |= dict(zip(given, args, strict=False)) | kwargs
    x = args[0]
    found = []
    for kind in OPERATORS[name]["results"]:
        if kind == "half":
            shape = list(x.shape)
            shape[given["dim"]] //= 2
            found.append(x.new_empty(shape))
        elif kind == "rstd":
            kept = x.dim() - given["gamma"].dim()
            found.append(x.new_empty((*x.shape[:kept], *[1] * given["gamma"].dim()), dtype=torch.float32))
        else:
            found.append(torch.empty_like(given[kind]))
    return tuple(found)


#: Name and arguments of every call, in order.
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []


def on_meta(name: str, *args: Any, **kwargs: Any) -> Any:
    """A meta kernel."""
    out = results_of(name, args, kwargs)
    return out if len(out) > 1 else out[0]


def define(library: torch.library.Library, name: str) -> None:
    """Define one operator and its kernels for the CPU and for meta tensors."""

    def on_cpu(*args: Any, **kwargs: Any) -> Any:
        CALLS.append((name, args, kwargs))
        for value in (*args, *kwargs.values()):
            need(not isinstance(value, torch.Tensor) or value.dtype in (*FLOATS, torch.int32, torch.int64), "dtypes")
        out = FORMULAS[name](*args, **kwargs)
        several = out if isinstance(out, tuple) else (out,)
        for one, want in zip(several, results_of(name, args, kwargs), strict=True):
            assert (one.shape, one.dtype) == (want.shape, want.dtype), f"{name}: {one.shape} {one.dtype}, not {want}"
        return out

    library.define(OPERATORS[name]["schema"])
    library.impl(name, on_cpu, "CPU")
    library.impl(name, functools.partial(on_meta, name), "Meta")


@functools.cache
def install() -> torch.library.Library:
    """Define all of them, once a process: what is returned keeps them."""
    library = torch.library.Library("npu", "DEF")
    for name in OPERATORS:
        define(library, name)
    return library


class Kernels:
    """What ``torch_npu`` exports of them: the packets of ``torch.ops.npu``, by name."""

    def __getattr__(self, name: str) -> Any:
        if name not in OPERATORS:
            raise AttributeError(f"module 'torch_npu' has no attribute {name!r}")
        return getattr(torch.ops.npu, name)
