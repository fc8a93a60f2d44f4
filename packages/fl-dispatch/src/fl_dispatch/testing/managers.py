# SPDX-License-Identifier: Apache-2.0
"""The dispatcher with one implementation under test, and a count of how often its function was reached."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from fl_dispatch.backends import reference
from fl_dispatch.manager import OpManager
from fl_dispatch.policy import SelectionPolicy
from fl_dispatch.registry import OpRegistry
from fl_dispatch.testing.case import Target
from fl_dispatch.types import OpImpl


class Spy:
    """An implementation's function with a count of its calls."""

    def __init__(self, impl: OpImpl) -> None:
        self.calls = 0
        fn = impl.fn

        @functools.wraps(fn)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return fn(*args, **kwargs)

        self.impl = dataclasses.replace(impl, fn=counted, registered_by=None)


def manager_for(target: Target, impl: OpImpl | None = None, *, strict: bool) -> OpManager:
    """A manager in which the implementation comes first and the reference after it; with ``strict`` it is alone."""
    impl = impl or target.impl
    registry = OpRegistry()
    if target.spec.name not in registry.op_names():
        registry.define(target.spec)
    if impl.impl_id != "reference":
        reference.register(registry)
    registry.register(impl)
    policy = SelectionPolicy(prefer=(f"impl:{impl.impl_id}",), strict=strict)
    return OpManager(registry, policy, device_type=target.device)
