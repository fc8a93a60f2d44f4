# SPDX-License-Identifier: Apache-2.0
"""The tutorial shows the code that the tests build and serve with, not a copy that drifts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "write-a-vendor.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"<!-- from (\S+?)(?:: [^>]*)? -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_shows_every_file_that_has_content() -> None:
    assert len(BLOCKS) == 7


@pytest.mark.parametrize(("source", "shown"), BLOCKS)
def test_shown_code_is_that_of_the_sample_vendor(source: str, shown: str) -> None:
    assert shown
    assert shown in (ROOT / source).read_text(encoding="utf-8")
