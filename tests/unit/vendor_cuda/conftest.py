# SPDX-License-Identifier: Apache-2.0
"""A stand-in for sgl_kernel on the CPU, with its documented argument order and in-place semantics."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from fl_dispatch import OpImpl
from fl_vendor_cuda import sdk
from fl_vendor_cuda.operators import implementations


def _rows(x: torch.Tensor) -> None:
    if x.dim() != 2:
        raise RuntimeError("input must be a 2D tensor")


def _norm(total: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return total * torch.rsqrt(total.square().mean(-1, keepdim=True) + eps) * weight.float()


class FakeSglKernel(ModuleType):
    """The functions of sgl_kernel that are used, and a record of their calls: name and arguments."""

    def __init__(self) -> None:
        super().__init__("sgl_kernel")
        self.calls: list[tuple[Any, ...]] = []

    def _gated(self, name: str, x: torch.Tensor, act: Any) -> torch.Tensor:
        self.calls.append((name, x))
        if x.shape[-1] * x.dtype.itemsize % 16:
            raise ValueError("The pointers must be multiple of 16 bytes.")
        gate, up = x.float().chunk(2, dim=-1)
        return (act(gate) * up).to(x.dtype)

    def silu_and_mul(self, input: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return self._gated("silu_and_mul", input, functional.silu)

    def gelu_and_mul(self, input: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return self._gated("gelu_and_mul", input, functional.gelu)

    def gelu_tanh_and_mul(self, input: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return self._gated("gelu_tanh_and_mul", input, lambda z: functional.gelu(z, approximate="tanh"))

    def rmsnorm(self, input: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
        self.calls.append(("rmsnorm", input, weight, eps))
        _rows(input)
        return _norm(input.float(), weight, eps).to(input.dtype)

    def gemma_rmsnorm(self, input: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
        self.calls.append(("gemma_rmsnorm", input, weight, eps))
        _rows(input)
        return _norm(input.float(), weight.float() + 1.0, eps).to(input.dtype)

    def fused_add_rmsnorm(
        self, input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6
    ) -> None:
        self.calls.append(("fused_add_rmsnorm", input, residual, weight, eps))
        _rows(input)
        total = input.float() + residual.float()
        residual.copy_(total)
        input.copy_(_norm(total, weight, eps))

    def gemma_fused_add_rmsnorm(
        self, input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6
    ) -> None:
        self.fused_add_rmsnorm(input, residual, weight.float() + 1.0, eps)
        self.calls[-1] = ("gemma_fused_add_rmsnorm", *self.calls[-1][1:])

    def rotary_embedding(
        self,
        positions: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        head_size: int,
        cos_sin_cache: torch.Tensor,
        is_neox: bool = True,
    ) -> None:
        self.calls.append(("rotary_embedding", positions, query, key, head_size, cos_sin_cache, is_neox))
        assert positions.dtype == torch.int64
        assert query.dtype == key.dtype == cos_sin_cache.dtype
        assert query.shape[-1] == key.shape[-1] == head_size
        cos, sin = (half[positions][:, None] for half in cos_sin_cache.chunk(2, dim=-1))
        for x in (query, key):
            turning = x[..., : cos_sin_cache.shape[1]]
            if is_neox:
                a, b = turning.chunk(2, dim=-1)
            else:
                a, b = turning[..., 0::2], turning[..., 1::2]
            new = a * cos - b * sin, b * cos + a * sin
            a.copy_(new[0])
            b.copy_(new[1])


@pytest.fixture
def sgl_kernel(monkeypatch: pytest.MonkeyPatch) -> FakeSglKernel:
    """The stand-in, importable, with a GPU that seems to be there (no Hopper)."""
    module = FakeSglKernel()
    monkeypatch.setitem(sys.modules, "sgl_kernel", module)
    monkeypatch.setattr(sdk.importlib.util, "find_spec", lambda name: SimpleNamespace(name=name))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 9))
    return module


@pytest.fixture
def impls() -> dict[str, OpImpl]:
    """The implementations by operator, sharing a backend of their own."""
    return {impl.op_name: impl for impl in implementations()}
