# SPDX-License-Identifier: Apache-2.0
"""Child processes: what they inherit, and what a failure looks like to the user."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fltool import process
from fltool.process import CommandFailed, clean_environment, is_noise, run_logged, run_shown


@pytest.mark.parametrize(
    "name",
    ["SGLANG_PLATFORM", "SGLANG_FL_PREFER", "VLLM_PLUGINS", "VLLM_FL_STRICT", "FL_DISPATCH_STRICT", "USE_FLAGGEMS"],
)
def test_settings_of_engines_and_dispatch_do_not_reach_a_child(name: str) -> None:
    assert name not in clean_environment(base={name: "1", "HOME": "/home/me"})


def test_python_path_does_not_reach_a_child() -> None:
    assert "PYTHONPATH" not in clean_environment(base={"PYTHONPATH": "/elsewhere", "HOME": "/home/me"})


def test_other_settings_reach_a_child() -> None:
    base = {"PIP_INDEX_URL": "x", "PATH": "/bin", "HOME": "/home/me", "CUDA_VISIBLE_DEVICES": "0"}
    assert clean_environment(base=base) == base


@pytest.mark.parametrize("base", [{}, {"HOME": ""}])
def test_an_empty_home_is_replaced_by_a_folder_of_the_repository(base: dict[str, str]) -> None:
    assert Path(clean_environment(base=base)["HOME"]).parent.name == ".envs"


def test_what_the_runner_sets_wins_over_the_filter() -> None:
    assert clean_environment({"SGLANG_X": "set by a step"}, base={"SGLANG_X": "leaked"})["SGLANG_X"] == "set by a step"


def test_a_failed_command_is_shown_with_its_output_and_a_hint(tmp_path: Path) -> None:
    script = (
        "print('WARNING: Location file:///x/ is ignored: it is neither a file nor a directory.'); "
        "print('ERROR: No matching distribution found for nothing==1'); raise SystemExit(3)"
    )
    log = tmp_path / "pip.log"
    with pytest.raises(CommandFailed) as failure:
        run_logged([sys.executable, "-c", script], log=log, hint="is the package index reachable?")
    message = str(failure.value)
    assert "exit status 3" in message
    assert sys.executable in message
    assert "ERROR: No matching distribution found for nothing==1" in message
    assert str(log) in message
    assert message.endswith("hint: is the package index reachable?")
    assert "    WARNING: Location" not in message


def test_only_the_end_of_a_long_output_is_shown(tmp_path: Path) -> None:
    script = "[print(f'line {i}') for i in range(1000)]; raise SystemExit(1)"
    with pytest.raises(CommandFailed) as failure:
        run_logged([sys.executable, "-c", script], log=tmp_path / "log", hint="-")
    shown = [line.strip() for line in str(failure.value).splitlines() if line.strip().startswith("line ")]
    assert shown == [f"line {i}" for i in range(1000 - process.TAIL_LINES, 1000)]


def test_a_command_without_output_says_so(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="it printed nothing"):
        run_logged([sys.executable, "-c", "raise SystemExit(1)"], log=tmp_path / "log", hint="-")


def test_errors_of_pip_are_not_noise() -> None:
    assert not is_noise("ERROR: Could not find a version that satisfies the requirement x==1")
    assert not is_noise("WARNING: x 1.0 does not provide the extra 'y'")
    assert is_noise("Looking in links: somewhere")
    assert is_noise("")


def test_a_command_over_its_time_is_ended(capfd: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    assert run_shown(command, environment=clean_environment(), timeout=0.5) == 124
    assert "ended after 0 s" in capfd.readouterr().out


def test_a_command_has_nothing_to_read() -> None:
    command = [sys.executable, "-c", "import sys; sys.exit(len(sys.stdin.read()))"]
    assert run_shown(command, environment=clean_environment(), timeout=30) == 0
