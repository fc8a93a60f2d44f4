# SPDX-License-Identifier: Apache-2.0
"""Tests that share an engine stay in one worker when several run at a time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent
ENGINES = """
import pathlib
import pytest

@pytest.fixture(scope="module", params=["a", "b"])
def engine(request):
    with open(pathlib.Path(__file__).with_name("starts"), "a") as file:
        file.write(request.param)

@pytest.mark.parametrize("number", range(8))
def test_needs_the_engine(engine, number):
    assert number < 8
"""


def test_an_engine_of_a_module_is_started_once(tmp_path: Path) -> None:
    shutil.copy(TESTS / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    (tmp_path / "test_engines.py").write_text(ENGINES)
    command = [sys.executable, "-m", "pytest", "-q", "-n2", "--dist=loadgroup", str(tmp_path)]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=inherited)
    assert "16 passed" in done.stdout, done.stdout + done.stderr
    assert sorted((tmp_path / "starts").read_text()) == ["a", "b"]
