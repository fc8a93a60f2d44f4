# SPDX-License-Identifier: Apache-2.0
"""Builders for small managers: implementations that answer with their own name, to see who served a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fl_dispatch import BackendImplKind, OpImpl, OpManager, OpRegistry, SelectionPolicy, Site
from fl_dispatch.backends import reference


class Layer:
    """A layer as the operators see it."""

    def __init__(self, hidden: int = 8, **fields: Any) -> None:
        self.weight = torch.ones(hidden)
        self.variance_epsilon = 1e-6
        vars(self).update(fields)


def build_impl(
    vendor: str = "acme", op: str = "silu_and_mul", run: Callable[..., Any] | None = None, **declared: Any
) -> OpImpl:
    """An implementation of a vendor; it returns the vendor's name unless ``run`` gives it something else to do."""

    def one_input(obj: Any, x: Any) -> Any:
        return vendor if run is None else run(obj, x)

    def norm(obj: Any, x: Any, residual: Any = None) -> Any:
        return vendor if run is None else run(obj, x, residual)

    def rotary(obj: Any, query: Any, key: Any, cos: Any, sin: Any, position_ids: Any,
               rotary_interleaved: bool = False, inplace: bool = True) -> Any:  # fmt: skip
        return vendor if run is None else run(obj, query, key)

    fn = declared.pop("fn", norm if op.endswith("norm") else rotary if op.startswith("rotary") else one_input)
    impl_id = declared.pop("impl_id", f"vendor.{vendor}")
    return OpImpl(op, impl_id, BackendImplKind.VENDOR, fn, vendor=vendor, **declared)


def build_manager(*impls: OpImpl, policy: SelectionPolicy | None = None, with_reference: bool = True) -> OpManager:
    """A manager of these implementations and, if wanted, the references, on the CPU."""
    registry = OpRegistry()
    if with_reference:
        reference.register(registry)
    registry.register_many(impls)
    return OpManager(registry, policy or SelectionPolicy(), device_type="cpu")


class Failing:
    """A callable that fails while ``failing`` is set, and counts its calls."""

    def __init__(self, error: BaseException | None = None, answer: Any = "recovered", failing: bool = True) -> None:
        self.error = error or RuntimeError("kernel launch went wrong")
        self.answer = answer
        self.failing = failing
        self.calls = 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        if self.failing:
            raise type(self.error)(*self.error.args)
        return self.answer


@pytest.fixture
def impl() -> Callable[..., OpImpl]:
    return build_impl


@pytest.fixture
def manager() -> Callable[..., OpManager]:
    return build_manager


@pytest.fixture
def failing() -> type[Failing]:
    return Failing


@pytest.fixture
def make_layer() -> type[Layer]:
    return Layer


@pytest.fixture
def layer() -> Layer:
    return Layer()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.ones(3, 8)


def call_guarded(site: Site, *args: Any) -> Any:
    """Call through a site as an adapter does."""
    fn = site.fn
    try:
        return fn(*args)
    except Exception as error:  # noqa: BLE001  (the guard: judged in recover)
        return site.recover(error, *args)


@pytest.fixture
def call() -> Callable[..., Any]:
    return call_guarded
