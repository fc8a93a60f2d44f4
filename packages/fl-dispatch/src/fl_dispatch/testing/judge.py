# SPDX-License-Identifier: Apache-2.0
"""Results against float64 mathematics: the largest error, and the first wrong element in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fl_dispatch.ops.spec import OpSpec, Sample, Tolerance
from fl_dispatch.testing.calls import Results, as_results, described
from fl_dispatch.testing.case import CheckFailed
from fl_dispatch.testing.exact import exact, has_formula

#: What the absolute tolerances of the operators suppose of their samples.
LARGEST_SAMPLE = 4.0


@dataclass
class Worst:
    """The largest error seen, as a fraction of what the tolerance allows."""

    fraction: float = 0.0
    label: str = ""
    elements: int = 0
    calls: int = 0

    def as_figures(self) -> dict[str, Any]:
        """For the report."""
        return {
            "worst_error_of_tolerance": round(self.fraction, 4),
            "worst_input": self.label,
            "elements": self.elements,
            "calls": self.calls,
        }


def expected(spec: OpSpec, sample: Sample) -> Results:
    """What float64 mathematics gives; of an operator without a formula in ``exact``, its reference on float64 inputs."""
    if has_formula(spec.name):
        return exact(spec.name, sample.obj, *sample.args, **sample.kwargs)
    wide = [value.double() if _is_float(value) else value for value in sample.args]
    return tuple(result.double() for result in as_results(spec.reference(sample.obj, *wide, **sample.kwargs)))


def compare(
    spec: OpSpec,
    dtype: str,
    sample: Sample,
    got: Results,
    worst: Worst,
    want: Results | None = None,
    *,
    of_a_model: bool = False,
) -> None:
    """Judge one call's results and note its largest error.

    NaN and infinities have to be where float64 has them. With ``want``, the results have to be those, within the same
    tolerance: a check that is about something else than the numbers does not blame them.

    Absolute tolerances are for the kit's samples, whose values are at most 4. ``of_a_model`` scales them to the largest value of
    the same row in inputs and result, since what cancels is rounded relative to what it is made of; and an infinity is right
    where the result's dtype cannot hold the number.

    Raises:
        CheckFailed: another number or shape of results, or an element outside of the tolerance.
    """
    tolerance = spec.tolerances[dtype]
    want = expected(spec, sample) if want is None else tuple(result.double() for result in want)
    if len(got) != len(want):
        raise CheckFailed(f"{len(got)} results instead of {len(want)}", described(sample, dtype))
    worst.calls += 1
    for index, (one, right) in enumerate(zip(got, want, strict=True)):
        which = f"result {index + 1} of {len(want)}" if len(want) > 1 else "the result"
        shape = getattr(one, "shape", None)  # a vendor may return anything
        if shape != right.shape:
            shape = type(one).__name__ if shape is None else list(shape)
            raise CheckFailed(f"{which} is {shape} instead of {list(right.shape)}", described(sample, dtype))
        if not one.numel():
            continue
        wide = one.to(right.device).double()
        absolute = _scaled(tolerance.atol, one, right, sample.args) if of_a_model else tolerance.atol
        allowed = absolute + tolerance.rtol * right.abs()
        fraction = (wide - right).abs().div(allowed)
        same = (wide == right) | (wide.isnan() & right.isnan())
        if of_a_model and one.is_floating_point():
            same |= (
                wide.isinf()
                & (wide.sign() == right.sign())
                & (right.abs() > (1 - tolerance.rtol) * torch.finfo(one.dtype).max)
            )
        fraction = torch.where(same, 0.0, fraction).nan_to_num_(nan=torch.inf, posinf=torch.inf)
        largest = float(fraction.max())
        worst.elements += one.numel()
        if largest >= worst.fraction:
            worst.fraction, worst.label = largest, sample.label
        if largest > 1.0:
            raise _wrong(which, sample, dtype, tolerance, wide, right, fraction, allowed)


def _scaled(atol: float, got: torch.Tensor, right: torch.Tensor, args: Sequence[Any]) -> torch.Tensor | float:
    """An absolute tolerance for rows that are larger or smaller than the kit's samples, not below what the result's dtype holds."""
    if not right.dim():
        return atol
    rows = [right, *(value for value in args if _is_float(value) and value.shape[:-1] == right.shape[:-1])]
    finite = (torch.where(one.isfinite(), one, 0.0).double().abs().amax(dim=-1, keepdim=True) for one in rows)
    smallest = atol
    if got.is_floating_point():
        limits = torch.finfo(got.dtype)
        # A few steps of the smallest numbers that it holds; of float32 and bfloat16 kernels may flush those to zero.
        smallest = max(4 * limits.eps * limits.smallest_normal, torch.finfo(torch.float32).smallest_normal)
    return torch.stack(list(finite)).amax(dim=0).mul(atol / LARGEST_SAMPLE).clamp(min=smallest)


def _wrong(
    which: str,
    sample: Sample,
    dtype: str,
    tolerance: Tolerance,
    got: torch.Tensor,
    want: torch.Tensor,
    fraction: torch.Tensor,
    tolerated: torch.Tensor,
) -> CheckFailed:
    wrong = fraction > 1.0
    first = tuple(int(i) for i in wrong.nonzero()[0])
    have, right = float(got[first]), float(want[first])
    allowed = float(tolerated[first])
    return CheckFailed(
        f"{which} is wrong in {int(wrong.sum())} of {wrong.numel()} elements",
        described(sample, dtype),
        {
            "first wrong": f"element {list(first)}: got {have:.9g}, expected {right:.9g}",
            "error": f"{abs(have - right):.3g} there, allowed {allowed:.3g}; at worst {float(fraction.max()):.3g} times "
            "what is allowed",
            "tolerance": f"{tolerance.atol:.3g} + {tolerance.rtol:.3g} * |expected|, because: {tolerance.reason}",
        },
    )


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()
