# SPDX-License-Identifier: Apache-2.0
"""The test runner: which steps run, how their outcomes are summed, and the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from fltool import cli, suite
from fltool.environments import Environment
from fltool.process import ToolError
from fltool.suite import Step, run_suite

PASSED = "<testsuite tests='2' failures='0' errors='0' skipped='1'/>"


class Runs:
    """Stands in for running commands: records them and answers with a status and a report."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.built: list[str] = []
        self.status: dict[str, int] = {}

    def run_shown(self, command: Sequence[str], *, environment: Mapping[str, str], timeout: float | None = None) -> int:
        self.commands.append(list(command))
        for argument in command:
            if argument.startswith("--junitxml="):
                Path(argument.removeprefix("--junitxml=")).write_text(PASSED)
        return next((status for part, status in self.status.items() if any(part in word for word in command)), 0)

    def ensure(self, env: Environment) -> None:
        self.built.append(env.name)

    def ensure_model(self) -> None:
        self.built.append("model")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runs:
    for folder in ("packages", "tests/unit/ops", "tests/sglang"):
        (tmp_path / folder).mkdir(parents=True)
    runs = Runs()
    monkeypatch.setattr(suite, "ROOT", tmp_path)
    monkeypatch.setattr(suite, "REPORTS", tmp_path / "reports")
    monkeypatch.setattr(
        suite, "RECORDS", tmp_path / "records"
    )  # the real ones belong to the run that this test is a part of
    for name in ("run_shown", "ensure", "ensure_model"):
        monkeypatch.setattr(suite, name, getattr(runs, name))
    return runs


def test_folders_that_do_not_exist_are_left_out(runs: Runs) -> None:
    assert Step("dev", ("tests/unit", "tests/property")).runs() == [["tests/unit"]]
    assert Step("dev", ("tests/property",)).runs() == []


def test_a_selected_folder_is_a_run_of_its_own(runs: Runs) -> None:
    step = Step("x", ("tests/sglang",), selected_paths=("tests/unit/ops",), select="sglang")
    assert step.runs() == [["tests/sglang"], ["tests/unit/ops", "-k", "sglang"]]


def test_a_step_without_the_code_it_is_about_is_left_out(runs: Runs) -> None:
    assert Step("x", ("tests/sglang",), needs_source="packages/none/src").runs() == []


def test_one_step_builds_only_what_it_needs(runs: Runs) -> None:
    assert run_suite(["dev"])
    assert runs.built == ["dev"]
    assert run_suite(["sglang-0.5.23"])
    assert runs.built == ["dev", "sglang-0.5.23", "model"]


def test_a_run_begins_without_the_records_of_another(runs: Runs, tmp_path: Path) -> None:
    stale = tmp_path / "records" / "my-chip.vllm.json"
    stale.parent.mkdir()
    stale.touch()
    assert run_suite(["dev"])
    assert list(stale.parent.iterdir()) == []


def test_the_last_line_sums_all_steps(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_suite(["lint", "dev", "sglang-0.5.23"])
    assert capsys.readouterr().out.splitlines()[-1] == "6 passed, 0 failed, 2 skipped"


def test_a_failed_step_does_not_stop_the_others(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    runs.status = {"mypy": 1}
    assert not run_suite(["lint", "dev"])
    output = capsys.readouterr().out
    assert any("pytest" in word for command in runs.commands for word in command)
    assert "FAILED lint" in output
    assert output.splitlines()[-1] == "4 passed, 1 failed, 1 skipped"


def test_an_unknown_step_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ToolError, match="unknown step 'unit'; there are: lint, dev"):
        run_suite(["unit"])


def test_arguments_after_two_dashes_go_to_pytest(runs: Runs) -> None:
    assert cli.main(["test", "--only", "dev", "--", "-k", "name"]) == 0
    assert runs.commands[-1][-2:] == ["-k", "name"]


def test_a_failed_suite_is_the_exit_status(runs: Runs) -> None:
    runs.status = {"pytest": 1}
    assert cli.main(["test", "--only", "dev"]) == 1


def test_an_error_is_printed_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(env: Environment, recreate: bool, wheels: bool) -> None:
        raise ToolError("what failed\n  hint: what to do")

    monkeypatch.setattr(cli, "ensure", fails)
    assert cli.main(["env", "dev"]) == 1
    assert capsys.readouterr().err == "error: what failed\n  hint: what to do\n"
