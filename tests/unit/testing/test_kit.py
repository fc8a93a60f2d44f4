# SPDX-License-Identifier: Apache-2.0
"""How the kit is run: as an option, as a file of three lines, where nothing can be run, and beside other tests."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from kit import PLUGIN, Run, run_pytest

from fl_dispatch import ConfigError
from fl_dispatch.testing.report import check_writable
from fl_dispatch.testing.vendors import find

THREE_LINES = """from fl_dispatch.testing import vendor_conformance

test_conformance = vendor_conformance("my_chip")
"""
Installed = Callable[[str], Path]


@pytest.fixture(scope="module")
def three_lines(tmp_path_factory: pytest.TempPathFactory, installed: Installed) -> tuple[Run, Path]:
    folder = tmp_path_factory.mktemp("three_lines")
    (folder / "test_conformance.py").write_text(THREE_LINES, encoding="utf-8")
    return run_pytest(folder, "-v", "-k", "signature or numbers-float16-ordinary", path=(installed("my-chip"),)), folder


def test_a_file_of_three_lines_runs_the_checks_as_items_of_its_own(three_lines: tuple[Run, Path]) -> None:
    run, _ = three_lines
    assert run.status == 0, run.output
    for op in ("silu_and_mul", "rms_norm", "rotary_embedding"):
        for check in ("signature", "numbers-float16-ordinary"):
            assert f"test_conformance.py::test_conformance::{op}-vendor.my_chip-{check} PASSED" in run.output


def test_the_report_has_versions_device_and_figures(three_lines: tuple[Run, Path]) -> None:
    report = three_lines[0].report
    assert report is not None
    assert report["vendors"] == {"my_chip": "my-chip 1.0"}
    assert set(report["versions"]) >= {"python", "torch", "fl-dispatch", "my-chip"}
    assert list(report["devices"]) == ["cpu"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", report["date"])
    figures = [check["figures"] for check in report["checks"] if check["check"] == "numbers"]
    assert len(figures) == 3
    assert all(0 < one["worst_error_of_tolerance"] <= 1 and one["elements"] > 1000 for one in figures)


def test_the_page_needs_nothing_but_itself(three_lines: tuple[Run, Path]) -> None:
    page = (three_lines[1] / "report.html").read_text(encoding="utf-8")
    assert "Conformance of my_chip" in page
    assert "rms_norm-vendor.my_chip-numbers-float16-ordinary" in page
    assert not re.search(r"https?:|<script|src=|@import|url\(", page)


def test_without_the_plug_in_the_three_lines_fail_and_say_so(
    three_lines: tuple[Run, Path], installed: Installed
) -> None:
    run, folder = three_lines
    assert run.status == 0
    again = run_pytest(folder, "-q", path=(installed("my-chip"),), plugin=False)
    assert again.status == 1
    assert "the pytest plug-in of fl-dispatch is not loaded, so nothing was checked" in again.output


def test_where_nothing_can_be_run_the_run_fails_unless_that_is_allowed(tmp_path: Path, installed: Installed) -> None:
    # Of one vendor: that another one was checked does not help it.
    arguments = ("--fl-vendor", "my_chip", "--fl-vendor", "reference", "--fl-operator", "silu_and_mul", "-q")
    arguments += ("-k", "my_chip or signature")
    run = run_pytest(tmp_path, *arguments, path=(installed("my-chip"),), MY_CHIP_DEVICES="0")
    assert run.status == 1
    assert "fl-dispatch: nothing was checked of my_chip: no implementation can be used here" in run.output
    assert "silu_and_mul vendor.my_chip: not available: is_available() returned False" in run.output
    assert run.names("my_chip", "passed") == {"registration"}
    assert len(run.names("my_chip", "unavailable")) > 20
    run = run_pytest(tmp_path, *arguments, "--fl-allow-unavailable", path=(installed("my-chip"),), MY_CHIP_DEVICES="0")
    assert run.status == 0, run.output


def test_a_vendor_that_is_not_installed_is_a_usage_error(tmp_path: Path, installed: Installed) -> None:
    run = run_pytest(tmp_path, "--fl-vendor", "my_chp", path=(installed("my-chip"),))
    assert run.status == 4
    assert (
        "no vendor 'my_chp' is installed; there are: my_chip, flagos, reference; did you mean 'my_chip'" in run.output
    )
    assert "INTERNALERROR" not in run.output


def test_a_report_that_cannot_be_written_is_a_usage_error_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "file" / "report.json"):
        run = run_pytest(tmp_path, "--fl-vendor", "reference", "--fl-report", str(place))
        assert run.status == 4
        assert f"--fl-report {place} cannot be written: " in run.output
        assert "hint: give the name of a file, such as report.json" in run.output
        assert "INTERNALERROR" not in run.output


def test_trying_the_report_makes_its_folder_and_leaves_files_as_they_are(tmp_path: Path) -> None:
    old = tmp_path / "sub" / "old.html"
    check_writable(str(tmp_path / "sub" / "new.json"))
    old.write_text("kept", encoding="utf-8")
    check_writable(str(old))
    assert [path.name for path in (tmp_path / "sub").iterdir()] == ["old.html"]
    assert old.read_text(encoding="utf-8") == "kept"


def test_an_operator_that_does_not_exist_is_named_with_the_closest() -> None:
    with pytest.raises(ConfigError, match="unknown operator 'rmsnorm'; did you mean 'rms_norm'"):
        find("reference", operators=("rmsnorm",))


def test_an_operator_that_the_vendor_does_not_have_is_a_usage_error_with_those_it_has(
    tmp_path: Path, installed: Installed
) -> None:
    words = "vendor my_chip has no implementation of gelu_and_mul, so there is nothing to check; it has: "
    words += "rms_norm, rotary_embedding, silu_and_mul; hint: "
    path = (installed("my-chip"),)
    run = run_pytest(tmp_path, "--fl-vendor", "my_chip", "--fl-operator", "gelu_and_mul", path=path)
    assert run.status == 4
    assert words in run.output
    lines = THREE_LINES.replace('"my_chip"', '"my_chip", operators=["rms_norm", "gelu_and_mul"]')
    (tmp_path / "test_conformance.py").write_text(lines, encoding="utf-8")
    run = run_pytest(tmp_path, path=path)
    assert run.status not in (0, 5)
    assert words in run.output


def test_the_line_to_reproduce_a_failure_does(tmp_path: Path, installed: Installed) -> None:
    path = (installed("wrong-numbers"),)
    arguments = ("--fl-vendor", "wrong_numbers", "--fl-seed", "7", "-q")
    run = run_pytest(tmp_path, *arguments, "-k", "bfloat16-one_token or bfloat16-3-D", path=path, COLUMNS="200")
    assert run.report is not None
    first, second = run.report["checks"]
    assert first["status"] == second["status"] == "failed"
    assert re.search(r"^FAILED fl-dispatch::.* - the result is wrong in \d+ of \d+ elem", run.output, re.MULTILINE)
    command, *words = shlex.split(first["reproduce"])
    again = run_pytest(tmp_path, *words, path=path)
    assert command == "pytest"
    assert again.report is not None
    (check,) = again.report["checks"]
    assert (check["name"], check["details"]) == (first["name"], first["details"])
    # Of a vendor that has gemma_rms_norm as well, the same line finds one check, too.
    words = [word.replace("vendor.wrong", "wrong").replace("wrong_numbers", "reference") for word in words]
    listed = run_pytest(tmp_path, *words, "--collect-only", "-q", path=path, report=False).output
    assert re.findall(r"^fl-dispatch::.*$", listed, re.MULTILINE) == [
        "fl-dispatch::rms_norm-reference-numbers-bfloat16-one_token"
    ]


def test_a_run_that_does_not_use_the_kit_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import sys\n\ndef test_other():\n    assert 'torch' not in sys.modules\n", encoding="utf-8"
    )
    run = run_pytest(tmp_path, "-q", "-W", "error", report=False)
    assert run.status == 0, run.output
    assert "fl-dispatch" not in run.output


def test_the_plug_in_may_also_be_named(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text("def test_other():\n    pass\n", encoding="utf-8")
    assert run_pytest(tmp_path, "-q", *PLUGIN, *PLUGIN, report=False).status == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "xpu"}, "there is no device 'xpu' here; there is: cpu; hint: leave the device out"),
        ({"device": "no_such_chip"}, "there is no device 'no_such_chip' here; there is: cpu"),
        ({"device": "cpu:1"}, "device 'cpu:1': give the type alone, 'cpu'"),
    ],
)
def test_a_device_that_is_not_there_is_said_once_and_not_by_every_check(
    monkeypatch: pytest.MonkeyPatch, arguments: dict[str, str], message: str
) -> None:
    monkeypatch.setattr("fl_dispatch.testing.vendors.default_device_type", lambda: "cpu")
    with pytest.raises(ConfigError) as caught:
        find("reference", **arguments)
    assert message in str(caught.value)


def test_a_vendor_that_is_not_there_is_told_with_those_that_are_once() -> None:
    with pytest.raises(ConfigError) as caught:
        find("zzz")
    assert str(caught.value).count("reference") == 1
    assert "there are: " in str(caught.value)


LOSING = """def pytest_configure(config):
    from fl_dispatch.testing import lost
    lost.answers = lambda device: False
"""


def test_after_a_fault_that_ends_the_use_of_the_device_the_rest_is_not_called_failed(
    tmp_path: Path, installed: Installed
) -> None:
    (tmp_path / "conftest.py").write_text(LOSING, encoding="utf-8")
    arguments = ("--fl-vendor", "fault_off_by_a_tenth", "--fl-operator", "silu_and_mul", "-q", "-rs")
    run = run_pytest(tmp_path, *arguments, path=(installed("planted-faults"),))
    assert run.status == 1
    assert len(run.failed("fault_off_by_a_tenth")) == 1, run.output
    (first,) = run.failed("fault_off_by_a_tenth")
    assert len(run.names("fault_off_by_a_tenth", "unavailable")) > 20
    assert re.search(
        rf"cannot be used here: cpu cannot be used in this process any more since \S+-{first} failed", run.output
    )
