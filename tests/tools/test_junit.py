# SPDX-License-Identifier: Apache-2.0
"""Counting tests from pytest's reports: nothing that went wrong may count as success."""

from __future__ import annotations

from pathlib import Path

import pytest

from fltool.junit import Counts, pytest_counts, read_report

REPORT = """<?xml version="1.0"?><testsuites>
<testsuite name="a" tests="10" failures="2" errors="1" skipped="3"/>
<testsuite name="b" tests="5" failures="0" errors="0" skipped="0"/>
</testsuites>"""


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "report.xml"
    path.write_text(REPORT)
    return path


def write(path: Path, **numbers: int) -> None:
    attributes = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0} | numbers
    path.write_text(f"<testsuite {' '.join(f'{name}={str(value)!r}' for name, value in attributes.items())}/>")


def test_suites_are_summed_and_errors_count_as_failed(report: Path) -> None:
    assert read_report(report) == Counts(passed=9, failed=3, skipped=3)


def test_counts_print_as_the_closing_line() -> None:
    assert str(Counts(9, 3, 3) + Counts(1, 0, 0)) == "10 passed, 3 failed, 3 skipped"


def test_a_missing_or_torn_report_is_no_report(tmp_path: Path) -> None:
    assert read_report(tmp_path / "none.xml") is None
    (tmp_path / "torn.xml").write_text(REPORT[:80])
    assert read_report(tmp_path / "torn.xml") is None


def test_a_crash_without_a_report_counts_as_a_failure(tmp_path: Path) -> None:
    assert pytest_counts(-11, tmp_path / "none.xml") == Counts(failed=1)


def test_a_failing_exit_counts_even_if_every_test_passed(report: Path) -> None:
    write(report, tests=4)
    assert pytest_counts(3, report) == Counts(passed=4, failed=1)


def test_reported_failures_are_not_counted_twice(report: Path) -> None:
    assert pytest_counts(1, report).failed == 3


def test_a_run_without_tests_is_a_failure_unless_it_may_be_empty(report: Path) -> None:
    write(report)
    assert pytest_counts(5, report) == Counts(failed=1)
    assert pytest_counts(5, report, may_be_empty=True) == Counts()
