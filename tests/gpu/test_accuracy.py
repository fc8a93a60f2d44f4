# SPDX-License-Identifier: Apache-2.0
"""Every implementation of every operator against float64, through ``call_op``."""

from __future__ import annotations

import functools
import time

import pytest
import torch
from calls import (
    DECLARED,
    OPERATORS,
    TOKENS,
    Spy,
    copied,
    implementation,
    manager_for,
    run,
    sized_samples,
    spec_samples,
    worst,
)

from fl_dispatch import SelectionError

#: Fresh numbers in every run; the seed is in the message of a failure.
SEED = time.time_ns() % 2**31


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("op", "impl_id", "dtype"), DECLARED)
def test_sizes_of_models_are_within_the_tolerance(op: str, impl_id: str, dtype: str, tokens: int) -> None:
    impl = implementation(op, impl_id)
    manager = manager_for(impl)
    for sample in sized_samples(op, dtype, tokens, SEED):
        # What the result is allocated from holds no right answer by chance.
        torch.full((sample.args[0].numel(),), float("nan"), dtype=sample.args[0].dtype, device="cuda")
        given = copied(sample)
        got = run(functools.partial(manager.call_op, op), given)
        fraction = worst(op, dtype, sample, got)
        assert fraction <= 1.0, f"{fraction:.3g} of the tolerance at {sample.label!r}, seed {SEED}"


@pytest.mark.parametrize(("op", "impl_id", "dtype"), DECLARED)
def test_samples_are_within_the_tolerance_or_refused_before_the_kernel(op: str, impl_id: str, dtype: str) -> None:
    spy = Spy(implementation(op, impl_id))
    manager = manager_for(spy.impl)
    served, wrong = 0, []
    for sample in spec_samples(op, dtype, SEED):
        before = spy.calls
        try:
            got = run(functools.partial(manager.call_op, op), copied(sample))
        except SelectionError:
            assert spy.calls == before, f"{sample.label}: the kernel was called and then refused"
            continue
        served += 1
        fraction = worst(op, dtype, sample, got)
        if not fraction <= 1.0:
            wrong.append(f"{fraction:.3g} of the tolerance at {sample.label!r}")
    assert not wrong, f"seed {SEED}: " + "; ".join(wrong)
    assert served >= 5


@pytest.mark.parametrize("op", OPERATORS)
def test_an_implementation_on_the_gpu_repeats_its_own_results(op: str) -> None:
    """A difference between runs on the same input is a race."""
    for impl_id in {impl_id for name, impl_id, _ in DECLARED if name == op}:
        manager = manager_for(implementation(op, impl_id))
        for sample in sized_samples(op, "bfloat16", 1024, SEED):
            call = functools.partial(manager.call_op, op)
            runs = [run(call, copied(sample)) for _ in range(5)]
            for other in runs[1:]:
                assert all(torch.equal(a, b) for a, b in zip(runs[0], other, strict=True)), (impl_id, sample.label)
