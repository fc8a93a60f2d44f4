# SPDX-License-Identifier: Apache-2.0
"""What each implementation declares about itself. See ``limits`` for the predicates and ``backend`` for the calls."""

from __future__ import annotations

import functools
from typing import Any

from fl_dispatch import BackendImplKind, OpImpl
from fl_vendor_cuda import NAME, limits, sdk
from fl_vendor_cuda.backend import CudaBackend

_HALF = frozenset({"float16", "bfloat16"})
_FLOAT = _HALF | {"float32"}
#: The binaries are built for Ampere and newer.
_MIN_ARCH = (8, 0)

#: Measured on an H200 against float64, 8192 x 11008 normal gates.
INEXACT_TANH = (
    "the Hopper binary of {} takes tanh from the GPU's approximate instruction: errors of 1.2 (bfloat16), 5 (float16) "
    "and 14 (float32) times what the operator tolerates"
)

_GATED: dict[str, Any] = {
    "supports": limits.gated_rows,
    "mutates": frozenset(),
    "reads": frozenset(),
    "traceable": True,
}
# No float32: the plain norm has no kernel for it.
_NORM: dict[str, Any] = {
    "dtypes": _HALF,
    "supports": limits.norm_rows,
    "supports_layer": limits.norm_layer,
    "mutates": frozenset({"x", "residual"}),
    "reads": frozenset({"weight", "variance_epsilon"}),
    "traceable": True,
}

#: Operator to the functions of sgl_kernel it calls, and its declarations.
_DECLARED: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "silu_and_mul": (("silu_and_mul",), {"dtypes": _FLOAT, **_GATED}),
    "gelu_and_mul": (("gelu_and_mul",), {"dtypes": _FLOAT, **_GATED}),
    "gelu_tanh_and_mul": (("gelu_tanh_and_mul",), {"dtypes": _FLOAT, **_GATED}),  # not on Hopper, see _available
    # The product with the weight is float32 and then cast.
    "rms_norm": (("rmsnorm", "fused_add_rmsnorm"), {"honours": {"cast_x_before_out_mul": {False}}, **_NORM}),
    "gemma_rms_norm": (("gemma_rmsnorm", "gemma_fused_add_rmsnorm"), _NORM),
    # Not traceable: keeping a cast copy is no business of a graph. It becomes an opaque operator there.
    "rotary_embedding": (
        ("rotary_embedding",),
        {
            "dtypes": _FLOAT,
            "supports": limits.packed_heads,
            "supports_layer": limits.rotary_layer,
            "mutates": frozenset({"query", "key"}),
            "reads": frozenset({"cos_sin_cache"}),
        },
    ),
}


def implementations() -> list[OpImpl]:
    """One implementation an operator, sharing one backend."""
    backend = CudaBackend()
    return [
        OpImpl(
            op_name=op_name,
            impl_id=f"vendor.{NAME}",
            kind=BackendImplKind.VENDOR,
            fn=getattr(backend, op_name),
            vendor=NAME,
            available=functools.partial(_available, backend, op_name, functions),
            devices=frozenset({"cuda"}),
            min_arch=_MIN_ARCH,
            capture_safe=True,
            **declared,
        )
        for op_name, (functions, declared) in _DECLARED.items()
    ]


def _available(backend: CudaBackend, op_name: str, functions: tuple[str, ...]) -> bool | str:
    """True, or why not: sgl_kernel as a whole, one function that this version lacks, or one that is not exact enough."""
    if not backend.is_available():
        return backend.unavailable_reason() or "not available"
    if op_name == "gelu_tanh_and_mul" and sdk.has_fast_math():
        return INEXACT_TANH.format(sdk.described())
    return sdk.missing(*functions) or True
