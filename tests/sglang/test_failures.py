# SPDX-License-Identifier: Apache-2.0
"""Broken vendors and failing kernels in a real SGLang process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from engine import CALLS_PER_FORWARD, load_in_forks, serve

pytestmark = pytest.mark.sglang

Plugin = Callable[[str], Path]
REFERENCE_OPERATORS = dict.fromkeys(CALLS_PER_FORWARD, "reference")


def test_failures_of_a_kernel_that_mutates_nothing_are_passed_on_early_and_late(tmp_path: Path, plugin: Plugin) -> None:
    settings = {"SGLANG_FL_PREFER": "vendor", "FAILING_AT": "1,500", "FAILING_DECLARES": "1"}
    run = serve(tmp_path, settings, plugins=[plugin("failing-kernel")], new_tokens=6)
    assert run.equal == 2
    assert run.ran() == run.expected({**REFERENCE_OPERATORS, "rms_norm": "vendor.failing_kernel"})
    assert run.forwards * CALLS_PER_FORWARD["rms_norm"] > 500
    assert run.report is not None
    (norm,) = [row for row in run.report["operators"] if row["operator"] == "rms_norm"]
    assert norm["served_by_others"] == {"reference": 2}
    assert [missed["reason"] for missed in run.report["not_served"]] == [
        f"raised RuntimeError: kernel launch refused at call {at}" for at in (1, 500)
    ]
    assert run.report["demotions"] == []


@pytest.mark.parametrize("at", [1, 500])
def test_failure_of_a_kernel_that_may_have_written_stops_with_the_culprit(
    tmp_path: Path, plugin: Plugin, at: int
) -> None:
    settings = {"SGLANG_FL_PREFER": "vendor", "FAILING_AT": str(at)}
    run = serve(tmp_path, settings, plugins=[plugin("failing-kernel")], new_tokens=6)
    assert run.tokens is None
    message = run.error()
    assert "OpExecutionError: operator 'rms_norm', implementation 'vendor.failing_kernel' failed with" in message
    assert f"RuntimeError: kernel launch refused at call {at}" in message
    assert "it does not declare what it mutates" in message
    assert "float32[" in message


def test_wrong_setting_keeps_the_engine_from_starting(tmp_path: Path) -> None:
    run = serve(tmp_path, {"SGLANG_FL_PREFER": "referense"})
    assert run.status != 0
    assert run.tokens is None
    assert "sglang-fl refuses to start: SGLANG_FL_PREFER: unknown selection token 'referense'" in run.error()


def test_an_implementation_that_nothing_has_is_refused_before_a_worker_starts(tmp_path: Path) -> None:
    run = serve(tmp_path, {"SGLANG_FL_PER_OP": "rms_norm=impl:vendor.nowhere|reference"})
    assert run.status != 0
    assert run.tokens is None
    message = run.error()
    assert "ConfigError: token 'impl:vendor.nowhere': no implementation of operator 'rms_norm' has this id" in message
    assert "a policy of `fl-dispatch tune` names what was installed where it was made" in message
    assert "Load weight begin" not in run.log


WRONG_SETTINGS = {
    "operator": ("SGLANG_FL_PER_OP", "rmsnorm=reference", "unknown operator 'rmsnorm'; did you mean 'rms_norm'?"),
    "vendor": ("SGLANG_FL_PREFER", "vendor:my_chop", "no installed vendor is named 'my_chop'"),
    "variable": ("SGLANG_FL_PREFFER", "vendor", "unknown environment variable SGLANG_FL_PREFFER; did you mean"),
    "file": ("SGLANG_FL_CONFIG", "/nowhere/fl.yaml", "cannot read the configuration file '/nowhere/fl.yaml'"),
    "list": ("SGLANG_FL_OOT_BLACKLIST", "RMSNrom", "unknown operator 'RMSNrom'; did you mean 'RMSNorm'?"),
    "key": ("SGLANG_FL_CONFIG", "{folder}/fl.yaml", "fl.yaml: unknown key 'preffer'; did you mean 'prefer'?"),
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Each wrong setting, and a right one, in SGLang's plug-in loader: what it ended with."""
    folder = tmp_path_factory.mktemp("settings")
    (folder / "fl.yaml").write_text("preffer: vendor\n", encoding="utf-8")
    cases = {name: {key: value.format(folder=folder)} for name, (key, value, _) in WRONG_SETTINGS.items()}
    cases["right"] = {"SGLANG_FL_PREFER": "reference"}
    answers = load_in_forks({name: {"variables": variables} for name, variables in cases.items()}, folder)
    return {name: answer["outcome"] for name, answer in answers.items()}


@pytest.mark.parametrize("what", WRONG_SETTINGS)
def test_wrong_setting_is_refused_by_name_with_a_hint(refusals: dict[str, str], what: str) -> None:
    assert refusals[what].startswith("sglang-fl refuses to start: ")
    assert WRONG_SETTINGS[what][2] in refusals[what]


def test_right_setting_is_not_refused(refusals: dict[str, str]) -> None:
    assert refusals["right"] == "loaded"
