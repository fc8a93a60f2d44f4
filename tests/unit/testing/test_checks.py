# SPDX-License-Identifier: Apache-2.0
"""Checks on implementations that no vendor can be made of: they would hang."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest

from fl_dispatch.testing.case import CheckFailed
from fl_dispatch.testing.checks import repeats
from fl_dispatch.testing.vendors import find


def test_a_call_that_hangs_in_a_thread_fails_with_the_call_and_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    (target,) = find("reference", device="cpu", operators=("silu_and_mul",)).targets
    right, end = target.impl.fn, threading.Event()

    def waits_in_threads(obj: Any, x: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            end.wait()
        return right(obj, x)

    monkeypatch.setattr(repeats, "_TIMEOUT", 0.2)
    (check,) = (
        case
        for case in repeats.cases(
            dataclasses.replace(target, impl=dataclasses.replace(target.impl, fn=waits_in_threads))
        )
        if case.check == "threads"
    )
    try:
        with pytest.raises(CheckFailed) as caught:
            check.run()
    finally:
        end.set()
    assert str(caught.value) == "hung: call 1 of a thread was still not back 0.2 s after both threads had begun"
    assert "only the main thread serves" in caught.value.details["hint"]
