# SPDX-License-Identifier: Apache-2.0
"""The matrix of engine versions: which are chosen, what is laid over what, and the table in the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from fltool import engine_versions, matrix
from fltool.engine_versions import ENGINE_VERSIONS, engine_version
from fltool.junit import Counts
from fltool.process import ToolError

PAGE = """# Versions

| engine | outcome | tests | on | notes |
|---|---|---|---|---|
| SGLang 0.5.13 | passed | 1 passed, 0 failed, 0 skipped | 2026-01-01 | |
| vLLM 0.32.0 | passed | 2 passed, 0 failed, 0 skipped | 2026-01-01 | |

More text.

| version | another table |
|---|---|
"""


def names(*given: str) -> list[str]:
    return [version.name for version in matrix.chosen(given)]


def test_nothing_named_is_everything_in_order() -> None:
    assert names() == [version.name for version in ENGINE_VERSIONS]


def test_an_engine_stands_for_its_versions_and_nothing_is_run_twice() -> None:
    assert names("vllm", "vllm-0.29.0") == ["vllm-0.27.1", "vllm-0.29.0", "vllm-0.32.0", "vllm-0.33.0"]


def test_an_unknown_version_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ToolError, match=r"unknown engine version 'sglang-0.5.10'; there are: sglang-0.5.11, "):
        names("sglang-0.5.10")


@pytest.mark.parametrize("name", ["sglang-0.5.23", "sglang-0.5.17", "vllm-0.32.0"])
def test_the_version_of_an_environment_needs_nothing_laid_over_it(name: str) -> None:
    assert engine_version(name).folders() == []


def test_other_versions_go_in_front_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_versions, "_overlay", lambda version: Path("overlays", version.name))
    assert engine_version("sglang-0.5.13").folders() == [Path("overlays/sglang-0.5.13")]
    early = engine_version("sglang-0.5.11").folders()
    assert early[0] == Path("overlays/sglang-0.5.11")
    assert (early[1] / "sgl_kernel" / "kvcacheio.py").is_file()


def test_a_version_brings_its_variables_and_what_goes_in_front(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str] = {}

    def run(command: list[str], *, environment: dict[str, str], timeout: float) -> int:
        seen.update(environment)
        return 0

    monkeypatch.setattr(engine_versions, "_overlay", lambda version: Path("overlays", version.name))
    monkeypatch.setattr(matrix, "ensure", lambda env: None)
    monkeypatch.setattr(matrix, "run_shown", run)
    matrix.run_version(engine_version("vllm-0.33.0"))
    assert (seen["VLLM_TARGET_DEVICE"], seen["PYTHONPATH"]) == ("cpu", "overlays/vllm-0.33.0")


def test_new_lines_take_their_place_and_the_others_stay() -> None:
    new = {
        name: matrix.row(engine_version(name), Counts(30, failed, 1))
        for name, failed in (("sglang-0.5.11", 0), ("vllm-0.32.0", 2))
    }
    lines = matrix.with_rows(PAGE, new).splitlines()
    assert [line.split("|")[1:4] for line in lines[4:7]] == [
        [" SGLang 0.5.11 ", " passed ", " 30 passed, 0 failed, 1 skipped "],
        [" SGLang 0.5.13 ", " passed ", " 1 passed, 0 failed, 0 skipped "],
        [" vLLM 0.32.0 ", " **failed** ", " 30 passed, 2 failed, 1 skipped "],
    ]
    assert lines[7:] == PAGE.splitlines()[6:]


def test_a_page_without_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="has no table that begins with"):
        matrix.with_rows("# Versions\n", {})


def test_every_version_of_the_documentation_is_one_that_the_matrix_knows() -> None:
    titles = [line.split("|")[1].strip() for line in matrix._split(matrix.TABLE.read_text(encoding="utf-8"))[1]]
    known = [f"{matrix._TITLES[version.engine]} {version.version}" for version in ENGINE_VERSIONS]
    assert [title for title in known if title in titles] == titles
