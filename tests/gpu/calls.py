# SPDX-License-Identifier: Apache-2.0
"""Implementations under test, the calls they are tested with, and the judgement of what they return."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fl_vendor_cuda
from fl_dispatch import OpImpl, OpManager, OpRegistry, SelectionPolicy
from fl_dispatch.backends import flagos, reference
from fl_dispatch.facts import unavailable_reason
from fl_dispatch.ops.spec import Sample
from fl_dispatch.testing.exact import exact

REGISTRY = OpRegistry()
for _register in (flagos.register, reference.register, fl_vendor_cuda.register):
    _register(REGISTRY)
OPERATORS = tuple(sorted(REGISTRY.snapshot()))
IMPLS = [(op, impl.impl_id) for op in OPERATORS for impl in REGISTRY.get(op)]
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
#: Every implementation with every dtype it declares.
DECLARED = [
    (op, impl.impl_id, dtype)
    for op in OPERATORS
    for impl in REGISTRY.get(op)
    for dtype in DTYPES
    if impl.dtypes is None or dtype in impl.dtypes
]
TOKENS = (1, 16, 256, 8192)


def implementation(op: str, impl_id: str) -> OpImpl:
    """The implementation; skips the test where it cannot be used at all."""
    impl = next(impl for impl in REGISTRY.get(op) if impl.impl_id == impl_id)
    reason = _unusable(impl)
    if reason is not None:
        pytest.skip(f"{impl_id}: {reason}")
    return impl


@functools.cache
def _unusable(impl: OpImpl) -> str | None:
    return None if impl.available is None else unavailable_reason(impl.available)


def manager_for(impl: OpImpl, strict: bool = True) -> OpManager:
    """A manager in which this implementation comes first, the reference after it, and with ``strict`` nothing else."""
    registry = OpRegistry()
    if impl.impl_id != "reference":
        reference.register(registry)
    registry.register(dataclasses.replace(impl, registered_by=None))
    policy = SelectionPolicy(prefer=(f"impl:{impl.impl_id}",), strict=strict)
    return OpManager(registry, policy, device_type="cuda")


class Spy:
    """An implementation's function with a count of its calls."""

    def __init__(self, impl: OpImpl) -> None:
        self.calls = 0

        @functools.wraps(impl.fn)
        def fn(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return impl.fn(*args, **kwargs)

        self.impl = dataclasses.replace(impl, fn=fn, registered_by=None)


def run(call: Callable[..., Any], sample: Sample) -> tuple[torch.Tensor, ...]:
    """The results of ``call(obj, ...)``, always as a tuple."""
    result = call(sample.obj, *sample.args, **sample.kwargs)
    return result if isinstance(result, tuple) else (result,)


def copied(sample: Sample) -> Sample:
    """The sample with arguments of its own, in the layout they had, NaN in the gaps; obj is shared."""
    return dataclasses.replace(sample, args=tuple(map(_copied, sample.args)))


def _copied(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    extent = 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    gaps = float("nan") if value.is_floating_point() else 0
    offset = value.storage_offset() % 16
    buffer = torch.full((offset + max(extent, 0),), gaps, dtype=value.dtype, device=value.device)
    return buffer.as_strided(value.shape, value.stride(), offset).copy_(value)


def worst(op: str, dtype: str, sample: Sample, got: tuple[torch.Tensor, ...]) -> float:
    """The largest error against float64 as a fraction of what the operator tolerates; ``sample`` is still unused."""
    tolerance = REGISTRY.spec(op).tolerances[dtype]
    fraction = 0.0
    for one, want in zip(got, exact(op, sample.obj, *sample.args, **sample.kwargs), strict=True):
        assert one.shape == want.shape, f"{sample.label}: {list(one.shape)} instead of {list(want.shape)}"
        if one.numel():
            allowed = tolerance.atol + tolerance.rtol * want.abs()
            error = (one.double() - want).abs_().div_(allowed).nan_to_num_(nan=torch.inf)
            fraction = max(fraction, error.max().item())
    return fraction


def spec_samples(op: str, dtype: str, seed: int) -> Iterator[Sample]:
    """The operator's own samples, on the GPU."""
    make = REGISTRY.spec(op).samples
    assert make is not None
    return make(DTYPES[dtype], "cuda", seed)


def sized_samples(op: str, dtype: str, tokens: int, seed: int) -> Iterator[Sample]:
    """Calls of a size that models have: hidden size 4096, gated width 11008, 32 + 8 heads of 128 out of one projection.

    Fresh normal numbers, clamped to +-4 as the operators' tolerances assume.
    """
    generator = torch.Generator("cuda").manual_seed(seed)

    def normal(*shape: int, mean: float = 0.0, scale: float = 1.0) -> torch.Tensor:
        values = torch.randn(shape, generator=generator, device="cuda").clamp_(-4.0, 4.0)
        return (values * scale + mean).to(DTYPES[dtype])

    if op.endswith("and_mul"):
        yield Sample(f"{tokens} tokens", SimpleNamespace(), (normal(tokens, 2 * 11008),))
    elif op.endswith("norm"):
        offset = 1.0 if op.startswith("gemma") else 0.0
        for extra in ((), (normal(tokens, 4096),)):
            obj = SimpleNamespace(weight=normal(4096, mean=1.0 - offset, scale=0.25), variance_epsilon=1e-6)
            label = f"{tokens} tokens{', residual' if extra else ''}"
            yield Sample(label, obj, (normal(tokens, 4096), *extra))
    else:
        for cache_dtype in dict.fromkeys((DTYPES[dtype], torch.float32)):
            for interleaved in (False, True):
                packed = normal(tokens, 32 + 2 * 8, 128)
                angles = torch.outer(
                    torch.arange(16384, dtype=torch.float64, device="cuda"),
                    10000.0 ** -(torch.arange(0, 128, 2, dtype=torch.float64, device="cuda") / 128),
                )
                cache = torch.cat((angles.cos(), angles.sin()), dim=-1).to(cache_dtype)
                cos, sin = cache.chunk(2, dim=-1)
                positions = torch.randint(0, 16384, (tokens,), generator=generator, device="cuda")
                label = f"{tokens} tokens, interleaved={interleaved}, {cache_dtype} cache"
                obj = SimpleNamespace(cos_sin_cache=cache, head_size=128, rotary_dim=128, is_neox_style=not interleaved)
                args = (packed[:, :32], packed[:, 32:40], cos, sin, positions)
                yield Sample(label, obj, args, {"rotary_interleaved": interleaved, "inplace": True})
