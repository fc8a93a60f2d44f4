# SPDX-License-Identifier: Apache-2.0
"""The standard operators: ``fl_dispatch.ops.rms_norm(obj, x, residual=None)`` and so on.

Importing this package imports no torch; the specifications and references load when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_dispatch.ops.spec import OpSpec
    from fl_dispatch.ops.typed import (
        gelu_and_mul as gelu_and_mul,
    )
    from fl_dispatch.ops.typed import (
        gelu_tanh_and_mul as gelu_tanh_and_mul,
    )
    from fl_dispatch.ops.typed import (
        gemma_rms_norm as gemma_rms_norm,
    )
    from fl_dispatch.ops.typed import (
        rms_norm as rms_norm,
    )
    from fl_dispatch.ops.typed import (
        rotary_embedding as rotary_embedding,
    )
    from fl_dispatch.ops.typed import (
        silu_and_mul as silu_and_mul,
    )

#: Operator name to the module of its family, which has a tuple ``SPECS``.
STANDARD_OPERATORS = {
    "silu_and_mul": "fl_dispatch.ops.activation",
    "gelu_and_mul": "fl_dispatch.ops.activation",
    "gelu_tanh_and_mul": "fl_dispatch.ops.activation",
    "rms_norm": "fl_dispatch.ops.norm",
    "gemma_rms_norm": "fl_dispatch.ops.norm",
    "rotary_embedding": "fl_dispatch.ops.rotary",
}


def load_spec(op_name: str) -> OpSpec:
    """The specification of one standard operator (imports torch)."""
    family = importlib.import_module(STANDARD_OPERATORS[op_name])
    spec: OpSpec = next(spec for spec in family.SPECS if spec.name == op_name)
    return spec


def __getattr__(name: str) -> Any:
    # The typed functions need the manager, which needs this package: they load when first asked for.
    if name in STANDARD_OPERATORS:
        function = getattr(importlib.import_module("fl_dispatch.ops.typed"), name)
        globals()[name] = function
        return function
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
