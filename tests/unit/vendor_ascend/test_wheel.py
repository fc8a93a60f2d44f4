# SPDX-License-Identifier: Apache-2.0
"""The calls against a wheel of torch_npu, where one is given: FL_TORCH_NPU_WHEEL=torch_npu-....whl (`pip download`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

WHEEL = os.environ.get("FL_TORCH_NPU_WHEEL", "")


@pytest.mark.skipif(not WHEEL, reason="FL_TORCH_NPU_WHEEL names no wheel of torch_npu; see docs/ascend.md")
def test_the_wheels_own_schemas_and_meta_registrations_take_every_call():
    program = Path(__file__).parent / "wheel_check.py"
    done = subprocess.run(
        [sys.executable, str(program), WHEEL], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
