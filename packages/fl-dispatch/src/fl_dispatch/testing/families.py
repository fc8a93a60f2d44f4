# SPDX-License-Identifier: Apache-2.0
"""Shape families: what is special about a call, and the calls that operators' own samples do not have.

A family is found from the call itself, so the samples of an operator that a vendor defines have one as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace

import torch

from fl_dispatch.ops.inputs import CLAMP, Draw
from fl_dispatch.ops.spec import OpSpec, Sample

#: Every family, in the order in which a call is asked whether it belongs there.
FAMILIES = (
    "zero_tokens",
    "partial_rotary",
    "mixed_dtypes",
    "int32_positions",
    "large_magnitudes",
    "tiny_magnitudes",
    "non_contiguous",
    "one_token",
    "3-D",
    "odd_sizes",
    "interleaved",
    "ordinary",
    "model_sizes",
    "nan_and_inf",
)


def family_of(spec: OpSpec, sample: Sample) -> str:
    """The first family of ``FAMILIES`` that a call belongs to."""
    x = sample.args[0]
    tensors = [value for value in (*sample.args, *vars(sample.obj).values()) if isinstance(value, torch.Tensor)]
    if not x.numel():
        return "zero_tokens"
    rotary_dim = getattr(sample.obj, "rotary_dim", None)
    if rotary_dim is not None and rotary_dim < x.shape[-1]:
        return "partial_rotary"
    if any(tensor.is_floating_point() and tensor.dtype != x.dtype for tensor in tensors):
        return "mixed_dtypes"
    if any(tensor.dtype is torch.int32 for tensor in tensors):
        return "int32_positions"
    largest = float(x.abs().max())
    if largest > 40.0:
        return "large_magnitudes"
    if largest < 2.0**-7 and x.numel() > 64:
        return "tiny_magnitudes"
    # query and key as slices of one projection are what every model has: only the tokens lie apart.
    if not (x.is_contiguous() or ("position_ids" in spec.parameters and x[0].is_contiguous())):
        return "non_contiguous"
    if x.shape[0] == 1:
        return "one_token"
    if x.dim() == 3 and "position_ids" not in spec.parameters:
        return "3-D"
    if x.shape[-1] % 16:
        return "odd_sizes"
    return "interleaved" if sample.kwargs.get("rotary_interleaved") else "ordinary"


def further_samples(
    spec: OpSpec, dtype: str, device: str, seed: int, known: Sequence[tuple[str, Sample]]
) -> Iterator[tuple[str, Sample]]:
    """Calls of the families ``model_sizes`` and ``nan_and_inf``."""
    # Wider than a block that a kernel may take for the whole row.
    if spec.name != "rotary_embedding":
        for sample in sized_samples(spec, dtype, device, seed, 3, hidden=8192, width=28672):
            yield "model_sizes", sample
    for tokens in (1, 16, 256, 8192) if device != "cpu" else (1, 19):
        for sample in sized_samples(spec, dtype, device, seed, tokens):
            yield "model_sizes", sample
    # Positions from 1 on: at 0, sin is 0, and 0 * inf is NaN in some ways to compute it and not in others.
    for family, sample in known:
        positions = next(
            (arg for arg in sample.args if isinstance(arg, torch.Tensor) and arg.dtype is torch.int64), None
        )
        x = sample.args[0]
        if family in ("ordinary", "interleaved") and x.shape[0] >= 5 and x.shape[-1] >= 16 and x.numel() <= 2**12:
            if positions is not None:
                sample = replace(sample, args=tuple(arg + 1 if arg is positions else arg for arg in sample.args))
            yield "nan_and_inf", _with_nan_and_inf(sample)


def _with_nan_and_inf(sample: Sample) -> Sample:
    """NaN and infinity among the numbers of the first tensor, each in a row of its own; the last row stays finite."""
    x = sample.args[0].clone()
    for row, (column, value) in enumerate(((0, "nan"), (1, "inf"), (-1, "nan"), (-1, "inf"))):
        x[row].reshape(-1, x.shape[-1])[0, column] = float(value)
    return replace(sample, label=f"NaN and infinity in {sample.label}", args=(x, *sample.args[1:]))


class _DrawnThere(Draw):
    """Numbers drawn on the device itself: as many as a model has would take the host seconds."""

    def __init__(self, dtype: torch.dtype, device: str, seed: int) -> None:
        super().__init__(dtype, device, seed)
        self._there = torch.Generator(device).manual_seed(seed)

    def normal(
        self, *shape: int, scale: float = 1.0, mean: float = 0.0, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """As ``Draw.normal``."""
        z = torch.randn(shape, generator=self._there, device=self.device).clamp_(-CLAMP, CLAMP)
        return (z * scale + mean).to(dtype or self.dtype)


def sized_samples(
    spec: OpSpec, dtype: str, device: str, seed: int, tokens: int, hidden: int = 4096, width: int = 11008
) -> Iterator[Sample]:
    """Calls of the sizes of models: hidden size, gated width, 32 + 8 heads of 128 out of one projection.

    Normal numbers, clamped to +-4 as the operators' tolerances assume. None for operators of other shapes.
    """
    draw = (Draw if device == "cpu" else _DrawnThere)(getattr(torch, dtype), device, seed)
    if spec.name.endswith("_and_mul"):
        label = f"{tokens} tokens of a model, d={width}"
        yield Sample(label, SimpleNamespace(), (draw.normal(tokens, 2 * width),))
    elif spec.name.endswith("rms_norm"):
        offset = 1.0 if spec.name.startswith("gemma") else 0.0
        for extra, epsilon in (((), 1e-6), ((draw.normal(tokens, hidden),), 1e-5)):
            obj = SimpleNamespace(weight=draw.normal(hidden, mean=1.0 - offset, scale=0.25), variance_epsilon=epsilon)
            label = f"{tokens} tokens of a model, hidden={hidden}{', residual' if extra else ''}"
            yield Sample(label, obj, (draw.normal(tokens, hidden), *extra))
    elif spec.name == "rotary_embedding":
        for cache_dtype in dict.fromkeys((getattr(torch, dtype), torch.float32)):
            for interleaved in (False, True):
                yield _sized_rotary(draw, tokens, cache_dtype, interleaved)


def _sized_rotary(draw: Draw, tokens: int, cache_dtype: torch.dtype, interleaved: bool) -> Sample:
    packed = draw.normal(tokens, 32 + 2 * 8, 128)
    frequencies = 10000.0 ** -(torch.arange(0, 128, 2, dtype=torch.float64) / 128)
    angles = torch.outer(torch.arange(4096, dtype=torch.float64), frequencies)
    cache = torch.cat((angles.cos(), angles.sin()), dim=-1).to(cache_dtype).to(draw.device)
    cos, sin = cache.chunk(2, dim=-1)
    obj = SimpleNamespace(cos_sin_cache=cache, head_size=128, rotary_dim=128, is_neox_style=not interleaved)
    args = (packed[:, :32], packed[:, 32:40], cos, sin, draw.integers(tokens, high=4096))
    label = f"{tokens} tokens of a model, {'interleaved' if interleaved else 'neox'}, {cache_dtype} cache"
    return Sample(label, obj, args, {"rotary_interleaved": interleaved, "inplace": True})
