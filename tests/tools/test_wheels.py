# SPDX-License-Identifier: Apache-2.0
"""Each package builds as a wheel that installs alone and imports without the framework or SDK it is for."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PACKAGES = sorted(path.parent for path in (Path(__file__).parents[2] / "packages").glob("*/pyproject.toml"))


@pytest.fixture(scope="module", params=PACKAGES, ids=lambda folder: folder.name)
def wheel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = request.param
    out = tmp_path_factory.mktemp(folder.name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(out), str(folder)], check=True)
    (built,) = out.glob("*.whl")
    return built


def test_wheel_holds_code_types_and_license_and_nothing_else(wheel: Path) -> None:
    import_name = wheel.name.split("-")[0]
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
    assert f"{import_name}/__init__.py" in names
    assert f"{import_name}/py.typed" in names
    assert any(name.endswith("LICENSE") for name in names)
    assert {name.split("/")[0] for name in names} == {import_name, f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"}


def test_wheel_imports_where_only_it_and_the_core_are_installed(wheel: Path, tmp_path: Path) -> None:
    import_name = wheel.name.split("-")[0]
    core = Path(__file__).parents[2] / "packages" / "fl-dispatch" / "src"
    with zipfile.ZipFile(wheel) as content:
        content.extractall(tmp_path)
    # Isolated: neither site-packages nor the working folder are on the path.
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(core)!r}]; import {import_name}; print({import_name}.__version__)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == wheel.name.split("-")[1]
