# SPDX-License-Identifier: Apache-2.0
"""docs/diffusion.md names the test behind each rule: they have to be there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_every_test_that_the_diffusion_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "diffusion.md").read_text(encoding="utf-8")))
    assert len(named) > 30
    files = (ROOT / "tests" / "sglang" / "diffusion").glob("test_*.py")
    there = {name for file in files for name in re.findall(r"(?m)^def (test_\w+)", file.read_text(encoding="utf-8"))}
    assert named <= there
