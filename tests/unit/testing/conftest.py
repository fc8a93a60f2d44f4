# SPDX-License-Identifier: Apache-2.0
"""Sample vendors installed from their wheels; ``kit`` is importable."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from kit import PLUGINS, install


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``installed("my-chip")``: the folder that holds tests/plugins/my-chip, installed from its wheel."""
    return functools.cache(lambda name: install(PLUGINS / name, tmp_path_factory.mktemp(name)))
