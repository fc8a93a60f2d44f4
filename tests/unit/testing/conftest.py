# SPDX-License-Identifier: Apache-2.0
"""Sample vendors installed from their wheels; ``kit`` is importable."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from sample_wheels import install_plugin


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``installed("my-chip")``: the folder that holds tests/plugins/my-chip, installed from its wheel."""
    into = tmp_path_factory.mktemp("plugins")
    return lambda name: install_plugin(name, into)
