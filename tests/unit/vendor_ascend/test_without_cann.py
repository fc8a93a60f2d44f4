# SPDX-License-Identifier: Apache-2.0
"""Machines without CANN: the package, `import torch` and the command line work, whatever state torch_npu is in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fl_vendor_ascend

SOURCE = Path(fl_vendor_ascend.__file__).parents[1]
IMPORTS = "import sys, fl_vendor_ascend; print('torch' in sys.modules, 'torch_npu' in sys.modules)"
BROKEN = {
    "ImportError": "raise ImportError('libhccl.so: cannot open shared object file')",
    "OSError": "raise OSError('libascend_hal.so: cannot open shared object file')",
}


def run(site: Path, *argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A process that has the vendor installed, from its source, beside what else is in ``site``."""
    info = site / "fl_vendor_ascend-0.1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fl-vendor-ascend\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[fl_dispatch.vendors]\nascend = fl_vendor_ascend:VENDOR\n")
    path = os.pathsep.join([str(site), str(SOURCE), *filter(None, sys.path)])
    environ = {**os.environ, "PYTHONPATH": path, **variables}
    return subprocess.run(
        [sys.executable, *argv], env=environ, capture_output=True, text=True, timeout=120, check=False
    )


def torch_npu(site: Path, body: str, *, autoload: bool) -> None:
    """A distribution torch-npu whose module does this when imported; with the entry point that torch loads by itself."""
    (site / "torch_npu").mkdir()
    (site / "torch_npu" / "__init__.py").write_text(body + "\n")
    info = site / "torch_npu-2.13.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-npu\nVersion: 2.13.0\n")
    if autoload:
        (info / "entry_points.txt").write_text("[torch.backends]\ntorch_npu = torch_npu:_autoload\n")


def explained(site: Path, **variables: str) -> str:
    done = run(site, "-m", "fl_dispatch", "explain", "silu_and_mul", "--policy", "prefer=vendor", **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_torch_npu_all_works_and_the_reason_is_shown(tmp_path):
    done = run(tmp_path, "-c", f"{IMPORTS}; import torch")
    assert (done.returncode, done.stdout.split()) == (0, ["False", "False"]), done.stderr
    assert "needs an Ascend NPU, there is no /dev/davinci" in explained(tmp_path)


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
def test_a_torch_npu_that_cannot_be_imported_is_not_imported_where_there_is_no_npu(tmp_path, body):
    torch_npu(tmp_path, body, autoload=False)
    done = run(tmp_path, "-c", IMPORTS)
    assert (done.returncode, done.stdout.split()) == (0, ["False", "False"]), done.stderr
    assert "needs an Ascend NPU" in explained(tmp_path)


def test_where_torch_cannot_be_imported_beside_torch_npu_the_command_line_says_so_and_what_to_set(tmp_path):
    torch_npu(tmp_path, BROKEN["ImportError"], autoload=True)
    # Nothing of ours takes part in it: torch loads torch_npu whenever it is imported.
    assert run(tmp_path, "-c", IMPORTS).stdout.split() == ["False", "False"]
    listed = run(tmp_path, "-m", "fl_dispatch", "list")
    assert listed.returncode == 2
    assert "Traceback" not in listed.stderr
    said = " ".join(listed.stderr.split())
    assert said.startswith(
        "fl-dispatch: error: torch cannot be imported: Failed to load the backend extension: torch_npu."
    )
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in said
    assert "libhccl.so" in said
    assert "needs an Ascend NPU" in explained(tmp_path, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
