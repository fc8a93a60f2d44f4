# SPDX-License-Identifier: Apache-2.0
"""How the tests call an implementation with a sample and judge what comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from fl_dispatch.ops import activation, norm, rotary
from fl_dispatch.ops.spec import OpSpec, Sample
from fl_dispatch.testing.exact import exact

SPECS: dict[str, OpSpec] = {spec.name: spec for family in (activation, norm, rotary) for spec in family.SPECS}
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
SEED = 20


def samples_of(name: str, dtype_name: str, seed: int = SEED) -> Iterator[Sample]:
    make = SPECS[name].samples
    assert make is not None
    return make(DTYPES[dtype_name], "cpu", seed)


def call(fn: Callable[..., Any], sample: Sample) -> tuple[torch.Tensor, ...]:
    result = fn(sample.obj, *sample.args, **sample.kwargs)
    return result if isinstance(result, tuple) else (result,)


@dataclass
class Worst:
    """The largest error of a comparison, as a fraction of what the tolerance allows: above 1 is a failure."""

    fraction: float = 0.0
    label: str = ""

    def see(self, fraction: float, label: str) -> None:
        if not fraction <= self.fraction:  # also true for NaN
            self.fraction, self.label = fraction, label


def worst_error(name: str, dtype_name: str, fn: Callable[..., Any], seed: int = SEED) -> Worst:
    """Compare ``fn`` with float64 mathematics over all samples of one operator and dtype."""
    tolerance = SPECS[name].tolerances[dtype_name]
    worst = Worst()
    for sample in samples_of(name, dtype_name, seed):
        expected = exact(name, sample.obj, *sample.args, **sample.kwargs)
        for got, want in zip(call(fn, sample), expected, strict=True):
            assert got.shape == want.shape, f"{sample.label}: {got.shape} instead of {want.shape}"
            if got.numel():
                allowed = tolerance.atol + tolerance.rtol * want.abs()
                worst.see(((got.double() - want).abs() / allowed).nan_to_num(nan=torch.inf).max().item(), sample.label)
    return worst
