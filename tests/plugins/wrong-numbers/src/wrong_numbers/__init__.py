# SPDX-License-Identifier: Apache-2.0
"""A norm that is off by a tenth: nothing raises, only the tokens tell."""

from fl_dispatch import BackendImplKind, OpImpl
from fl_dispatch.ops import load_spec


def rms_norm(obj, x, residual=None):
    result = load_spec("rms_norm").reference(obj, x, residual)
    return result * 1.1 if residual is None else (result[0] * 1.1, result[1])


def register(registry):
    registry.register(
        OpImpl("rms_norm", "vendor.wrong_numbers", BackendImplKind.VENDOR, rms_norm, vendor="wrong_numbers")
    )
