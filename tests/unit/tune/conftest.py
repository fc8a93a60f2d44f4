# SPDX-License-Identifier: Apache-2.0
"""Implementations of known speed on the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from fl_dispatch import BackendImplKind, OpImpl, OpRegistry
from fl_dispatch.backends import reference

MILLISECOND = 1e-3


def timed_impl(name: str, seconds: Callable[[int], float], **declared: Any) -> OpImpl:
    """An activation that takes so long for so many tokens."""

    def silu_and_mul(obj: Any, x: Any) -> Any:
        end = time.perf_counter() + seconds(x.size(0))
        while time.perf_counter() < end:
            pass
        return x.chunk(2, dim=-1)[0]

    return OpImpl("silu_and_mul", f"vendor.{name}", BackendImplKind.VENDOR, silu_and_mul, vendor=name, **declared)


@pytest.fixture
def timed() -> Callable[..., OpImpl]:
    return timed_impl


@pytest.fixture
def registry() -> OpRegistry:
    """The reference of every operator, and of ``silu_and_mul`` one vendor that is fast for few tokens and one for many."""
    built = OpRegistry()
    reference.register(built)
    built.register(timed_impl("few", lambda tokens: (0.1 if tokens <= 4 else 4) * MILLISECOND))
    built.register(timed_impl("many", lambda tokens: 1.5 * MILLISECOND))
    return built
