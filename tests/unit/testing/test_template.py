# SPDX-License-Identifier: Apache-2.0
"""``fl-dispatch new-vendor``: what it renders is a package that builds, installs and passes the conformance kit."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
from kit import Run, run_pytest
from sample_wheels import install_project

import fl_dispatch
from fl_dispatch.cli import main, new_vendor
from fl_dispatch.cli.new_vendor import check_name
from fl_dispatch.errors import ConfigError

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
        ("a" * 65, "a vendor's name has at most 64 characters, this one 65; shorten it"),
        ("torch", "'torch' is taken: it would hide or replace the package of that name; for example 'torch_chip'"),
        ("class", "'class' is taken: Python itself has it; for example 'class_chip'"),
        ("json", "'json' is taken: Python itself has it"),
        ("flagos", "'flagos' is taken: in a policy it means something else"),
        ("cuda", "'cuda' is taken: a vendor package of fl-dispatch's own has it; for example 'cuda_chip'"),
        ("tests", "'tests' is taken: projects have folders of that name; for example 'tests_chip'"),
        ("ruff", f"'ruff' is taken: ruff {version('ruff')} is installed, which pip would replace by it"),
    ],
)
def test_a_name_that_cannot_be_is_refused(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new-vendor", name]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name",
    [
        *("ascend", "numpy", "yaml", "packaging", "pytest", "setuptools", "test", "src"),
        *("sglang_fl", "vllm_fl_adapter", "fl_vendor_cuda"),
    ],
)
def test_names_of_others_are_refused_whether_or_not_they_are_installed(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^'{name}' is taken: .*; for example '{name}_chip'$"):
        check_name(name)


def test_what_can_be_imported_here_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_name("good_chip")
    (tmp_path / "good_chip.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="'good_chip' is taken: this environment has a package of that name, which"):
        check_name("good_chip")


def test_the_name_of_an_installed_vendor_is_refused_with_its_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    point = SimpleNamespace(dist=SimpleNamespace(name="acme-kernels", version="2.0"))
    monkeypatch.setattr(new_vendor, "installed_vendors", lambda: {"good_chip": point})
    with pytest.raises(ConfigError) as error:
        check_name("good_chip")
    assert str(error.value) == (
        "'good_chip' is taken: acme-kernels 2.0, which is installed, has a vendor of that name; "
        "for example 'good_chip_chip'"
    )


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("file", "file exists already; nothing was written"),
        ("file/new", "Not a directory; name a new folder, where you may write, with --output DIR"),
        ("dangling", "dangling is a link to nothing; name another folder with --output DIR"),
        ("dangling/new", "cannot write"),
        ("x" * 300, "File name too long; name a new folder"),
        ("/proc/new", "cannot write '/proc/new"),
    ],
)
def test_a_folder_that_cannot_be_written_is_one_error(
    output: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    (tmp_path / "dangling").symlink_to("nowhere")
    assert main(["new-vendor", "good_chip", "--output", output]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert {path.name for path in tmp_path.iterdir()} == {"file", "dangling"}


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
