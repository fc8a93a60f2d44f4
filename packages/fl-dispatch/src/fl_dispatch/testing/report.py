# SPDX-License-Identifier: Apache-2.0
"""``--fl-report FILE``: the outcome and figures of every check as JSON, and a page for people beside it."""

from __future__ import annotations

import datetime
import json
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from fl_dispatch import facts
from fl_dispatch.testing.page import render

_DISTRIBUTIONS = (
    "fl-dispatch", "torch", "triton", "flag-gems", "sglang-kernel", "sgl-kernel", "flashinfer-python", "torch-npu",
    "pytest",
)  # fmt: skip


def write(file: str, outcomes: Sequence[Mapping[str, Any]], config: pytest.Config) -> tuple[Path, Path]:
    """Write both files and return their paths. A page of FILE ``report.json`` is ``report.html``."""
    path, page = paths(file)
    content = contents(outcomes, config)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    page.write_text(render(content), encoding="utf-8")
    return path, page


def paths(file: str) -> tuple[Path, Path]:
    """The data and the page."""
    path = Path(file)
    page = path.with_suffix(".html")
    return (path.with_suffix(".json") if page == path else path), page


def check_writable(file: str) -> None:
    """Make the folder of FILE and try both files there, before a long run whose outcome they are to hold.

    Raises:
        pytest.UsageError: one of them cannot be written.
    """
    try:
        for path in paths(file):
            path.parent.mkdir(parents=True, exist_ok=True)
            new = not path.exists()
            path.open("ab").close()
            if new:
                path.unlink()
    except (OSError, ValueError) as error:  # ValueError: no file name at all
        raise pytest.UsageError(
            f"--fl-report {file} cannot be written: {error}; "
            "hint: give the name of a file, such as report.json, in a folder that you may write to"
        ) from error


def contents(outcomes: Sequence[Mapping[str, Any]], config: pytest.Config) -> dict[str, Any]:
    """The report as plain data."""
    counts = Counter(status(outcome) for outcome in outcomes)
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(("pytest", *map(str, config.invocation_params.args))),
        "vendors": {outcome["vendor"]: outcome["source"] for outcome in outcomes},
        "devices": {
            str(outcome["device"]): device_name(str(outcome["device"])) for outcome in outcomes if outcome["device"]
        },
        "versions": _versions(outcomes),
        "seed": config.getoption("--fl-seed"),
        "counts": dict(sorted(counts.items())),
        "checks": [{"status": status(outcome), **outcome} for outcome in outcomes],
    }


def status(outcome: Mapping[str, Any]) -> str:
    """``passed``, ``failed``, ``unavailable`` (could not be run here) or ``not applicable``."""
    if "unavailable" in outcome:
        return "unavailable"
    return "not applicable" if "not_applicable" in outcome else str(outcome["outcome"])


def device_name(device: str) -> str:
    """The product's name, as ``fl-dispatch tune`` has it too."""
    try:
        return facts.device_name(device)
    except (RuntimeError, AssertionError):
        return "not present"


def _versions(outcomes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    found = {"python": platform.python_version()}
    own = [str(outcome["source"]).rpartition(" ")[0] for outcome in outcomes]
    for name in (*_DISTRIBUTIONS, *sorted(set(filter(None, own)))):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
