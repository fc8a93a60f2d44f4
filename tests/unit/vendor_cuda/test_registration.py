# SPDX-License-Identifier: Apache-2.0
"""What the vendor registers, and what it takes to look at it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import fl_vendor_cuda
from fl_dispatch import OpRegistry, SelectionPolicy, select
from fl_dispatch.selection import DeviceFacts
from fl_dispatch.vendor import VENDOR_GROUP

PROJECT = Path(fl_vendor_cuda.__file__).parents[2] / "pyproject.toml"
OPERATORS = {
    "silu_and_mul",
    "gelu_and_mul",
    "gelu_tanh_and_mul",
    "rms_norm",
    "gemma_rms_norm",
    "rotary_embedding",
}


def test_every_operator_with_a_kernel_is_registered_under_the_vendors_name():
    registry = OpRegistry()
    fl_vendor_cuda.register(registry)
    found = {op: impl for op, impls in registry.snapshot().items() for impl in impls}
    assert set(found) == OPERATORS
    assert {impl.impl_id for impl in found.values()} == {"vendor.cuda"}
    assert {impl.vendor for impl in found.values()} == {"cuda"}


def test_the_entry_point_gives_the_vendor_of_its_name():
    points = tomllib.loads(PROJECT.read_text())["project"]["entry-points"][VENDOR_GROUP]
    ((name, value),) = points.items()
    vendor = EntryPoint(name, value, VENDOR_GROUP).load()
    assert vendor is fl_vendor_cuda.VENDOR
    assert vendor.name == name == "cuda"


def test_registering_imports_no_sgl_kernel_and_touches_no_device():
    program = (
        "import sys, torch, fl_vendor_cuda; from fl_dispatch import OpRegistry; fl_vendor_cuda.register(OpRegistry()); "
        "print('sgl_kernel' in sys.modules, torch.cuda.is_initialized())"
    )
    path = os.pathsep.join(filter(None, sys.path))  # with the code in place, wherever this process has it from
    environ = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == ["False", "False"]


def test_an_unusable_one_stays_visible_with_its_reason(impls):
    impl = impls["silu_and_mul"]
    selection = select("silu_and_mul", [impl], SelectionPolicy(), rejected={impl.impl_id: str(impl.available())})
    (candidate,) = selection.candidates
    assert not candidate.accepted
    assert "needs a" in candidate.reason


def test_older_gpus_and_other_devices_are_refused_by_facts(impls):
    for facts, word in ((DeviceFacts("cuda", (7, 5)), "architecture 8.0"), (DeviceFacts("cpu"), "needs device cuda")):
        selection = select("rms_norm", [impls["rms_norm"]], SelectionPolicy(), facts)
        assert word in selection.candidates[0].reason


def test_mutation_is_declared_as_the_kernels_do_it(impls):
    assert {op: set(impl.mutates) for op, impl in impls.items()} == {
        "silu_and_mul": set(),
        "gelu_and_mul": set(),
        "gelu_tanh_and_mul": set(),
        "rms_norm": {"x", "residual"},
        "gemma_rms_norm": {"x", "residual"},
        "rotary_embedding": {"query", "key"},
    }
