# SPDX-License-Identifier: Apache-2.0
"""Counting tests: pytest's JUnit report, and the sums over all steps."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Counts:
    """Numbers of tests by outcome; an error counts as failed."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def read_report(path: Path) -> Counts | None:
    """Sum a JUnit XML file over its suites; None if there is no readable report (the run died before writing it)."""
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError):
        return None
    total = Counts()
    for suite in root.iter("testsuite"):
        tests, failures, errors, skipped = (
            int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")
        )
        total += Counts(tests - failures - errors - skipped, failures + errors, skipped)
    return total


def pytest_counts(status: int, report: Path, *, may_be_empty: bool = False) -> Counts:
    """What a finished pytest run counts for.

    A run that exits non-zero never counts as free of failures: a crash, a usage error or a hook that raised counts
    as one. A run that executed nothing (status 5) counts as one failure as well unless ``may_be_empty``.
    """
    counts = read_report(report) or Counts()
    if status == 0 or counts.failed or (status == 5 and may_be_empty):
        return counts
    return counts + Counts(failed=1)
