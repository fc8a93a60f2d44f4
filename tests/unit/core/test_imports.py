# SPDX-License-Identifier: Apache-2.0
"""What importing costs, in modules: each import runs in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fl_dispatch

HEAVY = ("torch", "triton", "sglang", "vllm", "numpy", "flag_gems", "yaml")


def run(code):
    source = str(Path(fl_dispatch.__file__).parents[1])
    environ = {**os.environ, "PYTHONPATH": source}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "code",
    [
        "import fl_dispatch",
        "import fl_dispatch; fl_dispatch.SelectionPolicy(prefer='vendor')",
        "from fl_dispatch import OpImpl, BackendImplKind, BackendPriority, Backend, OpRegistry, Vendor",
        "import fl_dispatch; fl_dispatch.load_config('FL_DISPATCH_', {})",
        "import fl_dispatch; fl_dispatch.installed_vendors()",
        "from fl_dispatch import call_op, resolve_op, policy_context, default_manager",
        "from fl_dispatch.ops import rms_norm, silu_and_mul",
    ],
)
def test_imports_nothing_heavy(code):
    assert run(f"{code}\nimport sys\nprint(sorted(set({HEAVY}) & set(sys.modules)))") == "[]"


def test_the_bare_import_loads_no_submodule():
    assert run("import fl_dispatch, sys; print([m for m in sys.modules if m.startswith('fl_dispatch.')])") == "[]"


def test_every_public_name_resolves():
    for name in fl_dispatch.__all__:
        assert getattr(fl_dispatch, name) is not None


def test_dir_lists_the_public_names():
    assert set(fl_dispatch.__all__) <= set(dir(fl_dispatch))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'fl_dispatch' has no attribute 'call_opp'"):
        _ = fl_dispatch.call_opp
    with pytest.raises(AttributeError, match=r"module 'fl_dispatch\.ops' has no attribute 'rmsnorm'"):
        _ = fl_dispatch.ops.rmsnorm
