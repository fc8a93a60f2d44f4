# SPDX-License-Identifier: Apache-2.0
"""torch_npu's stand-in, and the implementations that call it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

if str(Path(__file__).parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).parent))

import npu_stand_in

from fl_dispatch import OpImpl
from fl_vendor_ascend import sdk
from fl_vendor_ascend.operators import implementations

npu_stand_in.install()


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-in as what the SDK gives; its list of calls is empty."""
    npu_stand_in.CALLS.clear()
    monkeypatch.setattr(sdk, "load", npu_stand_in.Kernels)
    return npu_stand_in


@pytest.fixture
def impls() -> dict[str, OpImpl]:
    """The implementations by operator, sharing a backend of their own."""
    return {impl.op_name: impl for impl in implementations()}
