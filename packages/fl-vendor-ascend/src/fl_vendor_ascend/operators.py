# SPDX-License-Identifier: Apache-2.0
"""What each implementation declares about itself. See ``limits`` for the predicates and ``backend`` for the calls."""

from __future__ import annotations

import functools
from typing import Any

from fl_dispatch import BackendImplKind, OpImpl
from fl_vendor_ascend import limits, rotary, sdk
from fl_vendor_ascend.backend import AscendBackend
from fl_vendor_ascend.device import DEVICE, NAME

_GATED: dict[str, Any] = {"supports": limits.gated_rows, "reads": frozenset()}
# Which roundings are honoured is not declared: where the kernels round is not documented, the tolerance has room for each
# place, and both frameworks' own methods for this device call the same kernels for every setting.
_NORM: dict[str, Any] = {
    "supports": limits.norm_rows,
    "supports_layer": limits.norm_layer,
    "reads": frozenset({"weight", "variance_epsilon"}),
}

#: Operator to the functions of torch_npu it calls, and its declarations.
_DECLARED: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "silu_and_mul": (("npu_swiglu",), _GATED),
    "gelu_and_mul": (("npu_geglu",), _GATED),
    "gelu_tanh_and_mul": (("npu_geglu",), _GATED),
    "rms_norm": (("npu_rms_norm", "npu_add_rms_norm"), _NORM),
    "gemma_rms_norm": (("npu_gemma_rms_norm",), _NORM),
    "rotary_embedding": (
        rotary.FUNCTIONS,
        {"supports": limits.rotary_call, "reads": frozenset({"cos_sin_cache"})},
    ),
}


def implementations() -> list[OpImpl]:
    """One implementation an operator, sharing one backend.

    Neither traceable nor capture-safe: both can only be found out on the device. In compiled code they become opaque
    operators.
    """
    backend = AscendBackend()
    return [
        OpImpl(
            op_name=op_name,
            impl_id=f"vendor.{NAME}",
            kind=BackendImplKind.VENDOR,
            fn=getattr(backend, op_name),
            vendor=NAME,
            available=functools.partial(_available, backend, functions),
            dtypes=frozenset({"float16", "bfloat16", "float32"}),
            devices=frozenset({DEVICE}),
            mutates=frozenset(),
            **declared,
        )
        for op_name, (functions, declared) in _DECLARED.items()
    ]


def _available(backend: AscendBackend, functions: tuple[str, ...]) -> bool | str:
    """True, or why not: torch_npu as a whole, or one function that this version lacks."""
    if not backend.is_available():
        return backend.unavailable_reason() or "not available"
    return sdk.missing(*functions) or True
