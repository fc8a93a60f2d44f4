# SPDX-License-Identifier: Apache-2.0
"""Vendors that are wrong on purpose, each in one way that real packages were: what a conformance kit has to find.

Every function of ``faults`` is an entry point ``fault_NAME``; ``caught_by`` says which check has to name it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fl_dispatch import BackendImplKind, OpImpl, OpRegistry

_HONEST: dict[str, Any] = {"mutates": frozenset(), "reads": None}


def _register(name: str, registry: OpRegistry) -> None:
    import planted_faults.faults  # noqa: F401  (plants them)
    from planted_faults.fault import FAULTS

    fault = FAULTS[name]
    vendor = f"fault_{name}"
    registry.register(
        OpImpl(
            op_name=fault.operator,
            impl_id=f"vendor.{vendor}",
            kind=BackendImplKind.VENDOR,
            fn=fault.fn,
            vendor=vendor,
            **{**_HONEST, **fault.declares},
        )
    )


def __getattr__(attribute: str) -> Callable[[OpRegistry], None]:
    """``register_NAME``: what the entry point ``fault_NAME`` is."""
    if not attribute.startswith("register_"):
        raise AttributeError(attribute)
    return partial(_register, attribute.removeprefix("register_"))
