# SPDX-License-Identifier: Apache-2.0
"""The plug-ins in every version of the engines: run them, and keep the table in docs/versions.md."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Sequence
from pathlib import Path

from fltool.engine_versions import ENGINE_VERSIONS, EngineVersion, engine_version
from fltool.environments import ensure
from fltool.junit import Counts, pytest_counts
from fltool.model import ensure_model
from fltool.paths import REPORTS, ROOT
from fltool.process import run_shown
from fltool.suite import pytest_variables

TABLE = ROOT / "docs" / "versions.md"
TIMEOUT = 3600.0
_TITLES = {"sglang": "SGLang", "vllm": "vLLM"}


def run_matrix(names: Sequence[str], *, write: bool = False, extra: Sequence[str] = ()) -> bool:
    """Run the versions, one after the other, and print one line each.

    Args:
        names: ``sglang-0.5.13``, or ``sglang`` or ``vllm`` for all of an engine's; everything when empty.
        write: put the outcomes into the table of the documentation.
        extra: further arguments for pytest.

    Returns:
        True if nothing failed.
    """
    versions = chosen(names)
    ensure_model()
    rows: dict[str, str] = {}
    failed = False
    for number, version in enumerate(versions, 1):
        print(f"\n== {number} of {len(versions)}: {version.name}", flush=True)
        started = time.monotonic()
        counts = run_version(version, extra)
        failed = failed or counts.failed > 0
        rows[version.name] = row(version, counts)
        print(f"{version.name}: {counts}, {time.monotonic() - started:.0f} s", flush=True)
        if write:
            TABLE.write_text(with_rows(TABLE.read_text(encoding="utf-8"), rows), encoding="utf-8")
    print("\n" + "\n".join(rows.values()))
    return not failed


def chosen(names: Sequence[str]) -> list[EngineVersion]:
    """The versions behind the names, each once.

    Raises:
        ToolError: a name is unknown.
    """
    found: dict[str, EngineVersion] = {}
    for name in names or tuple(_TITLES):
        several = [version for version in ENGINE_VERSIONS if version.engine == name]
        for version in several or [engine_version(name)]:
            found[version.name] = version
    return list(found.values())


def run_version(version: EngineVersion, extra: Sequence[str] = ()) -> Counts:
    """Build what is missing and run the version's tests."""
    env = version.environment
    ensure(env)
    variables = {**pytest_variables(), **dict(version.variables), "PYTHONPATH": ":".join(map(str, version.folders()))}
    REPORTS.mkdir(parents=True, exist_ok=True)
    report = REPORTS / f"matrix-{version.name}.xml"
    report.unlink(missing_ok=True)
    command = [str(env.python), "-m", "pytest", "-q", f"--junitxml={report}", *version.tests(), *extra]
    status = run_shown(command, environment=env.variables(variables), timeout=TIMEOUT)
    return pytest_counts(status, report, may_be_empty=bool(extra))


def row(version: EngineVersion, counts: Counts) -> str:
    """The version's line of the table."""
    outcome = "passed" if not counts.failed else "**failed**"
    date = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    cells = [f"{_TITLES[version.engine]} {version.version}", outcome, str(counts), date, version.note]
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def with_rows(text: str, rows: dict[str, str]) -> str:
    """The page with these versions' lines in its table, in the order of ``ENGINE_VERSIONS``; the other lines stay."""
    head, lines, tail = _split(text)
    present = {line.split("|")[1].strip(): line for line in lines}
    for version in ENGINE_VERSIONS:
        if version.name in rows:
            present[f"{_TITLES[version.engine]} {version.version}"] = rows[version.name]
    order = [f"{_TITLES[version.engine]} {version.version}" for version in ENGINE_VERSIONS]
    return head + "".join(f"{present[title]}\n" for title in order if title in present) + tail


def _split(text: str) -> tuple[str, list[str], str]:
    match = re.search(r"(?m)^\| engine \|.*\n\|[-|]+\n", text)
    if match is None:
        raise ValueError(f"{Path(TABLE).name} has no table that begins with '| engine |'")
    rest = text[match.end() :]
    count = len(rest) - len(re.sub(r"\A(\|.*\n)*", "", rest))
    return text[: match.end()], rest[:count].splitlines(), rest[count:]
