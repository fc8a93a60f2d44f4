# SPDX-License-Identifier: Apache-2.0
"""Faults that the registry refuses: one good implementation beside each, which has to go on working."""

from __future__ import annotations

from fl_dispatch import Backend, BackendImplKind, OpImpl
from fl_dispatch.ops import load_spec


def _impl(vendor, op_name, fn):
    return OpImpl(op_name, f"vendor.{vendor}", BackendImplKind.VENDOR, fn, vendor=vendor, mutates=frozenset())


def _good(vendor):
    return _impl(vendor, "silu_and_mul", load_spec("silu_and_mul").reference)


def register_wrong_signature(registry):
    """A norm without the argument ``residual``."""

    def rms_norm(obj, x):
        return load_spec("rms_norm").reference(obj, x)

    vendor = "fault_wrong_signature"
    registry.register_many([_good(vendor), _impl(vendor, "rms_norm", rms_norm)])


class _Incomplete(Backend):
    @property
    def name(self):
        return "fault_missing_method"

    def is_available(self):
        return True


def register_missing_method(registry):
    """A backend that registers a method it does not have."""
    vendor = "fault_missing_method"
    registry.register_many([_impl(vendor, "rms_norm", _Incomplete().rms_norm), _good(vendor)])
