# SPDX-License-Identifier: Apache-2.0
"""A FlagGems for the CPU, whose kernels leave PyTorch's dispatcher again after each test."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fl_dispatch import Config, load_config

FAKE = Path(__file__).parent / "fake_gems"


@pytest.fixture
def gems(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The fake module's kernels, ``gems().calls``; nothing is imported before it is asked for."""
    monkeypatch.syspath_prepend(str(FAKE))
    for variable in ("USE_FLAGGEMS", "FAKE_GEMS_FAULT", "FAKE_GEMS_EXTRA"):
        monkeypatch.delenv(variable, raising=False)
    _forget()
    from fl_dispatch import aten_library

    before = list(aten_library._kept)
    yield lambda: importlib.import_module("flag_gems.ops")
    for library in aten_library._kept[len(before) :]:
        library._destroy()
    aten_library._kept[:] = before
    _forget()


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "flag_gems"]:
        del sys.modules[name]


@pytest.fixture
def settings() -> Callable[..., Config]:
    """``settings(FLAGOS_ATEN="1")``: as read from these variables alone."""
    return lambda **given: load_config(
        "SGLANG_FL_", {f"SGLANG_FL_{key}": value for key, value in given.items()}, vendors=()
    )
