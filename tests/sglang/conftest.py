# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests that run real SGLang."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from sample_wheels import install_plugin


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip with a reason where there is no SGLang or no model; the project's own test command provides both."""
    here = Path(__file__).parent
    try:
        import sglang  # noqa: F401
    except ImportError as error:
        reason = f"needs real SGLang: {error}"
    else:
        if "FL_TEST_MODEL" in os.environ:
            return
        reason = "needs FL_TEST_MODEL, the folder of SmolLM2-135M-Instruct (tools/fl.py model makes it)"
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``plugin("my-chip")``: the folder where tests/plugins/my-chip is installed from its wheel."""
    into = tmp_path_factory.mktemp("plugins")
    return lambda name: install_plugin(name, into)
