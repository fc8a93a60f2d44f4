# SPDX-License-Identifier: Apache-2.0
"""What the conformance kit does not look at is tested with the kit's own means: its targets, copies and judgement."""

from __future__ import annotations

from typing import Any

import pytest

import fl_vendor_cuda
from fl_dispatch import OpManager, OpRegistry
from fl_dispatch.backends import flagos, reference
from fl_dispatch.facts import unavailable_reason
from fl_dispatch.ops.spec import Sample
from fl_dispatch.testing.calls import as_results, copied
from fl_dispatch.testing.case import Target
from fl_dispatch.testing.families import sized_samples
from fl_dispatch.testing.judge import Worst, compare

REGISTRY = OpRegistry()
for _register in (flagos.register, reference.register, fl_vendor_cuda.register):
    _register(REGISTRY)
IMPLS = [(op, impl.impl_id) for op, impls in REGISTRY.snapshot().items() for impl in impls]


def target(op: str, impl_id: str) -> Target:
    """The implementation; skips the test where it cannot be used at all."""
    impl = next(impl for impl in REGISTRY.get(op) if impl.impl_id == impl_id)
    reason = None if impl.available is None else unavailable_reason(impl.available)
    if reason is not None:
        pytest.skip(f"{impl_id}: {reason}")
    return Target(impl.vendor or impl_id, impl, REGISTRY.spec(op), "cuda", seed=5)


def model_calls(op: str, dtype: str, tokens: int, seed: int = 5) -> list[Sample]:
    """Calls of a model's size."""
    return list(sized_samples(REGISTRY.spec(op), dtype, "cuda", seed, tokens))


def judged(manager: OpManager, op: str, dtype: str, sample: Sample) -> Any:
    """Call through the dispatcher with a copy of the sample; raises CheckFailed where the result is not right."""
    given, _ = copied(sample)
    results = as_results(manager.call_op(op, given.obj, *given.args, **given.kwargs))
    compare(REGISTRY.spec(op), dtype, sample, results, Worst())
    return results
