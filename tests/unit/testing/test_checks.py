# SPDX-License-Identifier: Apache-2.0
"""Single checks on the reference with something wrong about it."""

from __future__ import annotations

import ctypes
import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fl_dispatch.testing.case import CheckFailed, Target
from fl_dispatch.testing.checks import compiled, mutation, repeats, shapes
from fl_dispatch.testing.vendors import find


@pytest.fixture
def silu() -> Target:
    (target,) = find("reference", device="cpu", operators=("silu_and_mul",)).targets
    return target


def with_function(target: Target, fn: Callable[..., Any]) -> Target:
    return dataclasses.replace(target, impl=dataclasses.replace(target.impl, fn=fn))


def test_a_call_that_hangs_in_a_thread_fails_with_the_call_and_the_time(
    silu: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, end = silu.impl.fn, threading.Event()

    def waits_in_threads(obj: Any, x: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            end.wait()
        return right(obj, x)

    monkeypatch.setattr(repeats, "_TIMEOUT", 0.2)
    checks = repeats.cases(with_function(silu, waits_in_threads))
    check = next(case for case in checks if case.check == "threads")
    try:
        with pytest.raises(CheckFailed) as caught:
            check.run()
    finally:
        end.set()
    assert str(caught.value) == "hung: call 1 of a thread was still not back 0.2 s after both threads had begun"
    assert "only the main thread serves" in caught.value.details["hint"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda: torch.set_default_dtype(torch.float64),
            "torch's default dtype (torch.float32 became torch.float64)",
        ),
        (lambda: torch.set_grad_enabled(True), "the grad mode (False became True)"),
        (lambda: torch.set_grad_enabled(False), "the grad mode (True became False)"),
        (lambda: torch.manual_seed(0), "the state of the CPU's random number generator"),
    ],
)
def test_a_call_that_changes_a_setting_of_torch_is_named(
    silu: Target, change: Callable[[], object], words: str
) -> None:
    right, before = silu.impl.fn, torch.get_rng_state()

    def changes(obj: Any, x: Any) -> Any:
        change()
        return right(obj, x)

    check = next(case for case in mutation.cases(with_function(silu, changes)) if case.variant == "writes-float16")
    try:
        with torch.no_grad(), pytest.raises(CheckFailed) as caught:
            check.run()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_rng_state(before)
    assert caught.value.problem == f"changed {words}, which the whole process shares"


def _transposed(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same values, column after column in memory."""

    def function(obj: Any, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = fn(obj, x)
        return out.transpose(0, -1).contiguous().transpose(0, -1)

    return function


def test_other_strides_are_a_fault_where_the_operator_itself_gives_contiguous_results(silu: Target) -> None:
    strange = with_function(silu, _transposed(silu.impl.fn))
    check = next(case for case in shapes.cases(strange) if case.variant == "real-float32")
    with pytest.raises(CheckFailed, match=r"contiguous inputs gave a result with strides \(1, \d+\)"):
        check.run()
    spec = dataclasses.replace(silu.spec, reference=_transposed(silu.spec.reference))
    check = next(
        case for case in shapes.cases(dataclasses.replace(strange, spec=spec)) if case.variant == "real-float32"
    )
    assert check.run()["calls"] > 0


def test_of_inputs_with_gaps_the_results_may_have_some_too(silu: Target) -> None:
    right, seen = silu.impl.fn, []

    def padded(obj: Any, x: torch.Tensor) -> torch.Tensor:
        seen.append(x.is_contiguous())
        out: torch.Tensor = right(obj, x)
        return out if x.is_contiguous() else torch.nn.functional.pad(out, (0, 8))[..., :-8]

    check = next(case for case in shapes.cases(with_function(silu, padded)) if case.variant == "real-float32")
    assert check.run()["calls"] > 0
    assert set(seen) == {True, False}


def fake_check(target: Target) -> Any:
    return next(case for case in shapes.cases(target) if case.variant == "fake-float32")


def test_what_a_trace_takes_the_results_to_be_is_compared_with_what_a_call_gives(silu: Target) -> None:
    right = silu.impl.fn

    def other_dtype(obj: Any, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = right(obj, x)
        return out.double() if torch.compiler.is_dynamo_compiling() else out

    assert fake_check(silu).run()["calls"] > 0
    with pytest.raises(CheckFailed, match=r"a trace sees float64\[.*\]@cpu, a call returns float32\["):
        fake_check(with_function(silu, other_dtype)).run()


def test_a_kernel_is_never_handed_the_address_of_a_tensor_without_memory(silu: Target) -> None:
    right, seen = silu.impl.fn, []

    def kernel(obj: Any, x: torch.Tensor) -> torch.Tensor:
        ctypes.memmove(x.data_ptr(), x.data_ptr(), x.nbytes)
        seen.append(type(x))
        out: torch.Tensor = right(obj, x)
        return out

    with pytest.raises(CheckFailed, match=r"torch\.compile raised"):
        fake_check(with_function(silu, kernel)).run()
    assert set(seen) == {torch.Tensor}


def test_what_a_trace_stores_in_the_layer_is_no_result(silu: Target) -> None:
    right = silu.impl.fn

    def keeping(obj: Any, x: torch.Tensor) -> torch.Tensor:
        obj.last = x * 2
        out: torch.Tensor = right(obj, x)
        return out

    assert fake_check(with_function(silu, keeping)).run()["calls"] > 0


def test_a_dtype_that_cannot_be_traced_is_found_whatever_the_check_of_graphs_is_carried_out_in(silu: Target) -> None:
    right = silu.impl.fn

    def reading(obj: Any, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = right(obj, x)
        return out * 2 if x.dtype is torch.float32 and x.numel() and x.sum() > 1e30 else out

    with pytest.raises(CheckFailed, match=r"torch\.compile raised"):
        fake_check(with_function(silu, reading)).run()


def test_queries_and_keys_of_one_projection_are_rotated_in_place_in_one_graph_for_all_sizes() -> None:
    (rotary,) = find("reference", device="cpu", operators=("rotary_embedding",)).targets
    right = rotary.impl.fn

    def in_place(
        obj: Any, query: torch.Tensor, key: torch.Tensor, *rest: Any, **named: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        found = right(obj, query, key, *rest, **named)
        for given, rotated in zip((query, key), found, strict=True):
            given.copy_(rotated)
        return query, key

    impl = dataclasses.replace(
        rotary.impl,
        impl_id="vendor.in_place",
        fn=in_place,
        mutates=frozenset({"query", "key"}),
        traceable=True,
        reads=frozenset(),
    )
    (check,) = compiled.cases(dataclasses.replace(rotary, impl=impl))
    assert check.run()["graphs"] <= 2
