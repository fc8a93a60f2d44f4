# SPDX-License-Identifier: Apache-2.0
"""A norm that raises at the calls numbered in $FAILING_AT ("1,500") and is right otherwise.

$FAILING_DECLARES makes it declare that it mutates nothing.
"""

import os

from fl_dispatch import BackendImplKind, OpImpl
from fl_dispatch.ops import load_spec

_at = [int(number) for number in os.environ.get("FAILING_AT", "1").split(",")]
_calls = 0


def rms_norm(obj, x, residual=None):
    global _calls
    _calls += 1
    if _calls in _at:
        raise RuntimeError(f"kernel launch refused at call {_calls}")
    return load_spec("rms_norm").reference(obj, x, residual)


def register(registry):
    mutates = frozenset() if os.environ.get("FAILING_DECLARES") else None
    registry.register(
        OpImpl(
            "rms_norm",
            "vendor.failing_kernel",
            BackendImplKind.VENDOR,
            rms_norm,
            vendor="failing_kernel",
            mutates=mutates,
        )
    )
