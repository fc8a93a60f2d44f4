# SPDX-License-Identifier: Apache-2.0
"""What the vendor registers, and what it takes to look at it."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import fl_vendor_ascend
from fl_dispatch import DeviceFacts, OpRegistry, SelectionPolicy, select

PROJECT = Path(fl_vendor_ascend.__file__).parents[2] / "pyproject.toml"
GROUP = "fl_dispatch.vendors"


def test_every_operator_with_a_kernel_is_registered_under_the_vendors_name():
    registry = OpRegistry()
    fl_vendor_ascend.register(registry)
    found = {op: impl for op, impls in registry.snapshot().items() for impl in impls}
    assert set(found) == {
        "silu_and_mul",
        "gelu_and_mul",
        "gelu_tanh_and_mul",
        "rms_norm",
        "gemma_rms_norm",
        "rotary_embedding",
    }
    assert {(impl.impl_id, impl.vendor) for impl in found.values()} == {("vendor.ascend", "ascend")}


def test_the_entry_point_gives_the_vendor_of_its_name():
    ((name, value),) = tomllib.loads(PROJECT.read_text())["project"]["entry-points"][GROUP].items()
    vendor = EntryPoint(name, value, GROUP).load()
    assert vendor is fl_vendor_ascend.VENDOR
    assert vendor.name == name == "ascend"


def test_nothing_is_declared_that_only_the_device_can_show(impls):
    for impl in impls.values():
        assert (impl.traceable, impl.capture_safe, impl.mutates) == (False, False, frozenset())


def test_other_devices_are_refused_by_facts(impls):
    selection = select("rms_norm", [impls["rms_norm"]], SelectionPolicy(), DeviceFacts("cuda"))
    assert "needs device npu, this is cuda" in selection.candidates[0].reason
