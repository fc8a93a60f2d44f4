# SPDX-License-Identifier: Apache-2.0
"""``fl-dispatch new-vendor``: what it renders is a package that builds, installs and passes the conformance kit."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from kit import Run, run_pytest
from sample_wheels import install_project

import fl_dispatch
from fl_dispatch.cli import main

NAME = "acme_npu"

#: As much as a machine with many other things to do needs.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template") / "acme-npu"
    assert main(["new-vendor", NAME, "--output", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def run(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The package's own tests, run against its wheel, from a folder that has nothing but them."""
    site = install_project(package, tmp_path_factory.mktemp("installed"))
    empty = tmp_path_factory.mktemp("empty")
    (package / "tests").rename(empty / "tests")
    return run_pytest(empty, "-q", "tests", path=(site,))


def test_no_name_of_the_template_is_left(package: Path) -> None:
    files = [path for path in package.rglob("*") if path.is_file()]
    assert {path.relative_to(package).as_posix() for path in files} >= {
        ".github/workflows/ci.yml", ".gitignore", "README.md", "pyproject.toml",
        "src/acme_npu/__init__.py", "src/acme_npu/operators.py", "src/acme_npu/platform.py",
    }  # fmt: skip
    for path in files:
        text = f"{path} {path.read_text(encoding='utf-8')}"
        assert not re.search(r"my.?chip|FL_DISPATCH_|\.template", text, re.IGNORECASE), path


def test_its_wheel_passes_the_conformance_kit_and_its_own_tests(run: Run) -> None:
    assert run.status == 0, run.output
    assert run.report is not None
    assert run.report["vendors"] == {NAME: "acme-npu 0.1.0"}
    assert run.report["counts"].keys() == {"passed", "not applicable"}
    implementations = {(check["operator"], check["implementation"]) for check in run.report["checks"]}
    assert implementations == {
        (None, None),
        ("silu_and_mul", "vendor.acme_npu"),
        ("rms_norm", "vendor.acme_npu"),
        ("rotary_embedding", "vendor.acme_npu"),
    }


def test_every_check_applies_to_it_but_for_what_a_processor_has_not(run: Run) -> None:
    reasons = [] if run.report is None else [c["not_applicable"] for c in run.report["checks"] if "not_applicable" in c]
    assert set(reasons) == {
        "torch has no graphs for device cpu",
        "it declares neither supports nor supports_layer",
    }


def test_it_requires_the_release_that_rendered_it_and_none_that_may_break_it(package: Path) -> None:
    project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    major, minor = (int(part) for part in str(fl_dispatch.__version__).split(".")[:2])
    assert major == 0
    assert project["dependencies"] == [f"fl-dispatch>={fl_dispatch.__version__},<0.{minor + 1}"]


def test_its_code_is_clean(package: Path) -> None:
    for command in (["ruff", "check"], ["ruff", "format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", *command, "--isolated", "--line-length=120", str(package)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("My-Chip", "'my_chip' would do"),
        ("3d_chip", "a letter first"),
        ("a__b", "single underscores between them, a letter first; 'a_b' would do"),
        ("torch", "'torch' is taken by Python, PyTorch, an engine or the dispatcher; for example 'torch_chip'"),
        ("class", "'class' is taken by Python"),
        ("json", "'json' is taken by Python"),
        ("flagos", "'flagos' is taken by"),
    ],
)
def test_a_name_that_cannot_be_is_refused(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new-vendor", name]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_an_existing_folder_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    assert main(["new-vendor", "good_chip", "--output", str(tmp_path)]) == 2
    assert "exists already; nothing was written" in " ".join(capsys.readouterr().err.split())
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_it_says_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-vendor", "good_chip", "--output", str(tmp_path / "new")]) == 0
    out = capsys.readouterr().out
    assert "src/good_chip/operators.py" in out
    assert f"cd {tmp_path / 'new'}" in out
    assert "pip install -e '.[test]'" in out
