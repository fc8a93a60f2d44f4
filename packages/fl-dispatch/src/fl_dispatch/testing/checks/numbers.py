# SPDX-License-Identifier: Apache-2.0
"""``numbers``: results agree with float64 mathematics, for every dtype and shape family."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from fl_dispatch.testing.calls import copied, judged_samples, poison, run, samples
from fl_dispatch.testing.case import Case, Figures, NotApplicable, Target
from fl_dispatch.testing.families import FAMILIES
from fl_dispatch.testing.judge import Worst, compare


def cases(target: Target) -> Iterator[Case]:
    """One for each declared dtype and each family that the operator has calls of."""
    for dtype in target.dtypes:
        # Which families there are is the same everywhere; the device need not be there to say so.
        present = {family for family, _ in samples(target.spec, dtype, "cpu", target.seed)}
        for family in FAMILIES:
            if family in present:
                check = partial(_agree, target, dtype, family)
                yield Case("numbers", "results agree with float64 mathematics", check, f"{dtype}-{family}", target)


def _agree(target: Target, dtype: str, family: str) -> Figures:
    worst = Worst()
    reasons = []
    for its_family, sample, refusal in judged_samples(target, dtype):
        if its_family != family:
            continue
        if refusal is not None:
            reasons.append(refusal)
            continue
        given, _ = copied(sample)
        poison(given)
        compare(target.spec, dtype, sample, run(target, given, dtype), worst)
    if not worst.calls:
        raise NotApplicable(f"its declared limits refuse all {len(reasons)} calls: {reasons[0]}")
    return {**worst.as_figures(), "refused": len(reasons)}
