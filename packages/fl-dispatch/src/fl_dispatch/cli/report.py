# SPDX-License-Identifier: Apache-2.0
"""``fl-dispatch report``: the reports that workers wrote, as tables."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from fl_dispatch.cli.text import as_json
from fl_dispatch.errors import ConfigError
from fl_dispatch.report import SCHEMA_VERSION
from fl_dispatch.report_text import format_report


def add_parser(subparsers: Any) -> None:
    """Add this command to the command line."""
    parser = subparsers.add_parser(
        "report",
        help="the reports that workers wrote, as tables",
        description="Prints what each worker runs and why, with the calls so far, from the files that the setting `report` "
        "had them write. Where calls were compared with float64 (the setting `compare`): how right they were.",
        epilog="exit codes: 0 good; 1 a compared call was wrong; 2 a file is missing or no report",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="for example report.rank0.json")
    parser.add_argument("--json", action="store_true", help="print a list of the reports as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> tuple[str, int]:
    """Carry it out; returns the text to print and the exit code."""
    reports = [read(file) for file in args.files]
    wrong = any(row["wrong_calls"] for report in reports for row in report.get("compared") or ())
    text = as_json(reports) if args.json else "\n\n".join(map(format_report, reports))
    return text, int(wrong)


def read(file: Path) -> dict[str, Any]:
    """One report.

    Raises:
        ConfigError: there is no such file, or it is none of this version.
    """
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        beside = file.parent.iterdir() if file.parent.is_dir() else ()
        near = sorted(path.name for path in beside if path.name.startswith(file.stem) and path.suffix == file.suffix)
        hint = f"there is {', '.join(near)}" if near else "workers write it once their model is loaded"
        reason = error.strerror if isinstance(error, OSError) else f"it is no JSON: {error}"
        raise ConfigError(f"{file}: {reason}; {hint}") from error
    version = report.get("schema_version") if isinstance(report, dict) else None
    if version != SCHEMA_VERSION or "left_to_framework" not in report:
        raise ConfigError(
            f"{file}: no report of this fl-dispatch: schema_version is {version!r} and not {SCHEMA_VERSION}; "
            "give a file that the setting `report` had a worker write"
        )
    return report  # type: ignore[no-any-return]  # from JSON
