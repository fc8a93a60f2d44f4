# SPDX-License-Identifier: Apache-2.0
"""docs/conformance.md names every check, family and option that there is, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from fl_dispatch.testing import plan, plugin
from fl_dispatch.testing.families import FAMILIES
from fl_dispatch.testing.vendors import find

PAGE = (Path(__file__).parents[3] / "docs" / "conformance.md").read_text(encoding="utf-8")
TABLES = "\n".join(line for line in PAGE.splitlines() if line.startswith("| `"))
DTYPES = ("float32", "float16", "bfloat16")


def test_every_check_is_in_the_table() -> None:
    found = find("reference", operators=("rms_norm",))
    names = {
        "-".join(part for part in (case.check, case.variant) if part) if case.check != "numbers" else "numbers"
        for case in plan.cases(found)
    }
    names = {re.sub(rf"-({'|'.join(DTYPES)})$", "", name) for name in names}
    section = PAGE[PAGE.index("## What is checked") :]
    documented = set(re.findall(r"`([a-z_-]+)`", "\n".join(re.findall(r"^\| (.*?) \|", section, re.MULTILINE))))
    assert documented == names | {"registration"}


def test_every_family_is_in_the_table() -> None:
    assert [family for family in FAMILIES if f"`{family}`" not in TABLES] == []


def test_every_option_is_in_the_table() -> None:
    options = re.findall(r'"(--fl-[a-z-]+)"', Path(plugin.__file__).read_text(encoding="utf-8"))
    assert options
    assert [option for option in options if f"`{option}" not in TABLES] == []
    assert set(re.findall(r"(--fl-[a-z-]+)", PAGE)) <= set(options)
