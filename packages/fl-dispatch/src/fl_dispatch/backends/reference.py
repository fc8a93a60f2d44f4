# SPDX-License-Identifier: Apache-2.0
"""The PyTorch references as a backend: always able, mutates nothing, traces and captures. Lowest priority."""

from __future__ import annotations

from fl_dispatch import ops
from fl_dispatch.registry import OpRegistry
from fl_dispatch.types import BackendImplKind, OpImpl


def register(registry: OpRegistry) -> None:
    """Add the reference of every standard operator."""
    for op_name in ops.STANDARD_OPERATORS:
        spec = registry.spec(op_name)
        registry.register(
            OpImpl(
                op_name=op_name,
                impl_id="reference",
                kind=BackendImplKind.REFERENCE,
                fn=spec.reference,
                mutates=frozenset(),
                reads=frozenset(field.name for field in spec.fields),
                traceable=True,
                capture_safe=True,
            )
        )
