# SPDX-License-Identifier: Apache-2.0
"""The same file of a vendor serves SGLang and vLLM. Reads what the tests of both left behind in their environments."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def records() -> dict[str, Any]:
    """Framework to what its test recorded."""
    folder = os.environ.get("FL_TEST_RECORDS")
    if not folder:
        pytest.skip("needs FL_TEST_RECORDS, the folder where the tests of both engines left their reports")
    return {
        framework: json.loads((Path(folder) / f"my-chip.{framework}.json").read_text(encoding="utf-8"))
        for framework in ("sglang", "vllm")
    }


def served(report: dict[str, Any]) -> set[tuple[str, str]]:
    return {(row["operator"], row["implementation"]) for row in report["operators"] if row["calls"] > 0}


def test_both_engines_installed_the_same_file(records: dict[str, Any]) -> None:
    assert records["sglang"]["wheel"] == records["vllm"]["wheel"]


def test_both_reports_name_the_same_implementations(records: dict[str, Any]) -> None:
    wanted = {(operator, "vendor.my_chip") for operator in ("rms_norm", "rotary_embedding", "silu_and_mul")}
    assert served(records["sglang"]["report"]) == served(records["vllm"]["report"]) == wanted
