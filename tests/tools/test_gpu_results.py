# SPDX-License-Identifier: Apache-2.0
"""The GPU benchmark's result files."""

from __future__ import annotations

import datetime
import json
import math
from pathlib import Path

import results


def test_a_result_says_when_and_by_which_command(tmp_path: Path) -> None:
    result = results.headed("micro.py", "--tokens 1", rows=[1])
    assert datetime.date.fromisoformat(result.pop("date")) <= datetime.datetime.now(datetime.UTC).date()
    assert result == {"command": "python3 benchmarks/gpu/micro.py --tokens 1", "rows": [1]}
    results.write(tmp_path, "micro", result, "# page")
    assert json.loads((tmp_path / "micro.json").read_text(encoding="utf-8")) == result
    results.write(tmp_path, "odd", {"a": [math.nan, (1.0, math.inf)]}, "")
    assert json.loads((tmp_path / "odd.json").read_text(encoding="utf-8")) == {"a": [None, [1.0, None]]}
    assert (tmp_path / "micro.md").read_text(encoding="utf-8") == "# page"


def test_versions_are_those_of_the_folders_that_are_given(tmp_path: Path) -> None:
    for place, version in (("own", "7.0"), ("site", "8.0")):
        folder = tmp_path / place / "flag_gems.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: flag-gems\nVersion: {version}\n", encoding="utf-8"
        )
    assert results.versions(tmp_path / "own", tmp_path / "site")["flag-gems"] == "7.0"
    assert results.versions(tmp_path / "site")["flag-gems"] == "8.0"
    assert "flag-gems" not in results.versions()  # not in this environment
