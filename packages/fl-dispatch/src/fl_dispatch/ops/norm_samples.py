# SPDX-License-Identifier: Apache-2.0
"""Sample calls of the normalisation operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, cycle
from types import SimpleNamespace

import torch

from fl_dispatch.ops.inputs import Draw, rows_apart, transposed
from fl_dispatch.ops.spec import Sample

# label, x, residual, weight
Case = tuple[str, torch.Tensor, torch.Tensor | None, torch.Tensor]

#: What models have, in turn: one that an implementation has of itself is not enough.
EPSILONS = (1e-6, 1e-5)


def norm_samples(
    variants: tuple[dict[str, bool], ...], offset: float, dtype: torch.dtype, device: str, seed: int
) -> Iterator[Sample]:
    """Calls that every implementation must get right, each with and without a residual, for every variant of the
    rounding fields of ``variants``. ``offset`` is what the operator adds to the weight.
    """
    draw = Draw(dtype, device, seed)
    for fields in variants:
        name = ", ".join(f"{key}={value}" for key, value in fields.items())
        for with_residual in (False, True):
            suffix = f"{', residual' if with_residual else ''} ({name})"
            cases = _cases(draw, with_residual, offset)
            # What a cast of normed or of weight to a half dtype does to these is no rounding error any more.
            if not fields.get("cast_x_before_out_mul"):
                cases = chain(cases, _hard_weight_cases(draw, with_residual, offset))
            for (label, x, residual, weight), epsilon in zip(cases, cycle(EPSILONS), strict=False):
                obj = SimpleNamespace(weight=weight, variance_epsilon=epsilon, **fields)
                yield Sample(label + suffix, obj, (x,) if residual is None else (x, residual))


def _cases(draw: Draw, with_residual: bool, offset: float) -> Iterator[Case]:
    """Weights, with the offset, are 1 + 0.25 z and thus in [0, 2]."""

    def case(
        label: str,
        *shape: int,
        layout: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.contiguous,
        weight_dtype: torch.dtype | None = None,
        scale: float = 1.0,
    ) -> Case:
        x = layout(draw.normal(*shape, scale=scale))
        residual = layout(draw.normal(*shape, scale=scale)) if with_residual else None
        return label, x, residual, draw.normal(shape[-1], mean=1.0 - offset, scale=0.25, dtype=weight_dtype)

    for tokens, hidden in ((0, 64), (1, 64), (3, 96), (17, 128), (256, 64), (5, 1), (3, 21), (17, 100), (2, 2048)):
        yield case(f"{tokens} tokens, hidden={hidden}", tokens, hidden)
    yield case("3-D", 2, 5, 48)
    yield case("3-D, zero tokens", 2, 0, 48)
    yield case("strided rows", 17, 64, layout=rows_apart)
    yield case("3-D, strided rows", 3, 5, 40, layout=rows_apart)
    yield case("transposed", 17, 32, layout=transposed)
    yield case("3-D, transposed", 3, 5, 32, layout=transposed)
    yield case("float32 weight", 17, 64, weight_dtype=torch.float32)
    # Up to 28000: float16 holds the sum of two, but no square.
    yield case("large magnitudes", 7, 64, scale=7000.0)
    # Mean squares of 2**-26 are far below epsilon, which decides the result: one call with each.
    for number in range(len(EPSILONS)):
        yield case(f"tiny magnitudes{', the next epsilon' * number}", 7, 64, scale=2.0**-13)


def _hard_weight_cases(draw: Draw, with_residual: bool, offset: float) -> Iterator[Case]:
    """Weights that make an early cast to a half dtype visible."""
    for label, dtype, factor in (
        ("big weights on small elements", draw.dtype, 1.0),
        ("weights beyond float16 on small elements", torch.float32, 16.0),
    ):
        # Two outliers a row push its other elements, once normalised, below the normal numbers of float16. Their sum
        # is exact in every dtype: rounding it would move the whole row.
        x, residual = (draw.normal(7, 256, scale=2.0**-12) for _ in range(2))
        x[:, :2], residual[:, :2] = 1024.0, 512.0
        weight = draw.signed(256, low=5e3 * factor, high=2e4 * factor, dtype=dtype)
        weight[:2] = 0.5
        yield label, x, residual if with_residual else None, weight
    if offset:
        weight = draw.signed(256, low=1e-4, high=1e-3, dtype=torch.float32) - offset
        yield (
            "float32 weights that nearly cancel the offset",
            draw.normal(7, 256),
            draw.normal(7, 256) if with_residual else None,
            weight,
        )
