# SPDX-License-Identifier: Apache-2.0
"""The pinned lists: exact, consistent with one another, and free of anything that holds on one machine only."""

from __future__ import annotations

from pathlib import Path

import pytest

from fltool.environments import ENVIRONMENTS
from fltool.paths import REQUIREMENTS
from fltool.process import ToolError
from fltool.requirements import pins

LISTS = sorted(REQUIREMENTS.glob("*.txt"))


@pytest.mark.parametrize("name", sorted(ENVIRONMENTS))
def test_the_lists_of_an_environment_agree(name: str) -> None:
    found = pins(*ENVIRONMENTS[name].lists)
    assert "pytest" in found
    assert "torch" in found


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_a_list_names_no_local_build_and_no_host(path: Path) -> None:
    text = path.read_text()
    assert "+cpu" not in text
    assert "://" not in text


def test_a_line_that_is_no_exact_pin_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("# comment\na==1\nb>=2\n")
    with pytest.raises(ToolError, match=r"list\.txt:3: 'b>=2' is not an exact pin; write name==version"):
        pins(path)


def test_two_pins_of_one_project_are_refused_under_any_spelling(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("Some_Name==1\nsome-name==2\n")
    with pytest.raises(ToolError, match="some-name is pinned to 1 and to 2"):
        pins(path)
