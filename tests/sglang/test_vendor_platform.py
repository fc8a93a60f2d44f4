# SPDX-License-Identifier: Apache-2.0
"""Real SGLang on the platform of a vendor: the facts of its wheel, from the launcher to the memory pool of the worker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from engine import serve


def test_a_vendors_platform_serves_a_model(tmp_path: Path, plugin: Callable[[str], Path]) -> None:
    """A vendor with facts about a device: its set-up ran in the worker alone, its pool was built, its operator ran."""
    log = tmp_path / "log"
    settings = {"SAMPLE_PLATFORM": "1", "SAMPLE_PLATFORM_LOG": str(log), "SGLANG_FL_PREFER": "vendor|reference"}
    run = serve(tmp_path, settings, plugins=[plugin("sample-platform")])
    assert run.equal == 2
    report = run.report
    assert report is not None
    assert ("silu_and_mul", "vendor.sample_platform") in {(op, impl) for op, impl, *_ in run.ran()}
    lines = log.read_text().split("\n")[:-1]
    assert [line.split()[0] for line in lines] == ["setup", "pool"]
    assert len({line.split()[1] for line in lines}) == 1, "one process"
