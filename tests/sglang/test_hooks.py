# SPDX-License-Identifier: Apache-2.0
"""Hooks of other plug-ins beside ours, in SGLang's own loader and registry: which rules of SGLang hold for both."""

from __future__ import annotations

from typing import Any

import pytest
from engine import distribution, load_in_forks

pytestmark = pytest.mark.sglang

#: Another plug-in, with one hook on everything that we hook too; what it does is in the variables of the case.
OTHER = """
import os
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

CALLS = []
TARGETS = [
    ("scheduler", "sglang.srt.managers.scheduler.Scheduler.__init__"),
    ("model", "sglang.srt.model_executor.model_runner.ModelRunner.load_model"),
]


def hook(name, kind):
    def before(*args, **kwargs):
        CALLS.append(name)

    def after(result, *args, **kwargs):
        CALLS.append(name)

    def around(original, *args, **kwargs):
        CALLS.append(name)
        return original(*args, **kwargs)

    def around_and_stop(original, *args, **kwargs):
        CALLS.append(name)

    def replace(self, *args, **kwargs):
        CALLS.append(name)
        if name == "seam":
            return self.forward_native
        if name == "scheduler":
            from sglang.srt.model_executor.model_runner import ModelRunner
            ModelRunner.load_model(self.runner)

    def hijack(result, layer, *args, **kwargs):
        CALLS.append(name)
        return lambda *args: args[0]

    return locals()[kind]


def register():
    from sglang.srt.layers.layernorm import RMSNorm

    for name in ("_resolve_forward_method", "dispatch_forward"):
        owner = next((k for k in RMSNorm.__mro__ if name in vars(k)), None)
        if owner is not None:
            break
    targets = [*TARGETS, ("seam", f"{owner.__module__}.{owner.__qualname__}.{name}")]
    kind = os.environ["OTHER_KIND"]
    types = {"hijack": "AFTER", "around_and_stop": "AROUND"}
    for name, target in targets:
        if name in os.environ.get("OTHER_TARGETS", "scheduler,model,seam").split(","):
            HookRegistry.register(target, hook(name, kind), HookType[types.get(kind, kind.upper())])
    if "OTHER_APPLIES" in os.environ:
        HookRegistry.apply_hooks()
"""
KINDS = ("before", "after", "around", "replace")
RAN = [["rms_norm", "reference", 1], ["silu_and_mul", "reference", 1]]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Every case of this file, in one process that has imported SGLang."""
    folder = tmp_path_factory.mktemp("hooks")
    other = distribution(folder / "other", "other_hooks", OTHER, "[sglang.srt.plugins]", "other = other_hooks:register")
    report = {"SGLANG_FL_REPORT": str(folder / "report.json")}
    cases: dict[str, dict[str, Any]] = {"alone": {"variables": report}}
    for kind in (*KINDS, "hijack", "around_and_stop"):
        for place in ("before", "after"):
            cases[f"{kind} {place}"] = {"variables": {**report, "OTHER_KIND": kind}, place: [str(other)]}
    for case, target in (("hijack after", "seam"), ("around_and_stop before", "scheduler")):
        cases[case]["variables"]["OTHER_TARGETS"] = target
    cases["applied"] = {
        "variables": {**report, "OTHER_KIND": "around", "OTHER_APPLIES": "1"},
        "before": [str(other)],
    }
    return load_in_forks({name: {**case, "worker": True} for name, case in cases.items()}, folder)


def test_every_layer_of_the_model_is_dispatched(answers: dict[str, dict[str, Any]]) -> None:
    alone = answers["alone"]
    assert (alone["outcome"], alone["ran"]) == ("loaded", RAN)


def test_arguments_of_a_newer_version_are_passed_on_by_our_hooks(answers: dict[str, dict[str, Any]]) -> None:
    """The scheduler and the model loader of the test take one that no SGLang has."""
    assert answers["alone"]["done"] == ["__init__ of a newer version", "load_model of a newer version"]


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
def test_hooks_of_another_plug_in_on_our_targets_run_and_ours_stay_in_effect(
    answers: dict[str, dict[str, Any]], kind: str, place: str
) -> None:
    case = answers[f"{kind} {place}"]
    assert (case["outcome"], case["ran"]) == ("loaded", RAN)
    assert set(case["others"]) == {"scheduler", "model", "seam"}


def test_hooks_that_another_plug_in_had_applied_before_ours_do_not_keep_ours_out(
    answers: dict[str, dict[str, Any]],
) -> None:
    case = answers["applied"]
    assert (case["outcome"], case["ran"]) == ("loaded", RAN)
    assert set(case["others"]) == {"scheduler", "model", "seam"}


def test_a_plug_in_that_answers_for_the_layers_in_our_stead_stops_the_start(
    answers: dict[str, dict[str, Any]],
) -> None:
    message = answers["hijack after"]["outcome"]
    assert message.startswith("SeamError: SGLang ")
    assert "is not in effect: RMSNorm runs " in message
    assert "Another plug-in may replace it (look for hooks on the same target)" in message


def test_a_plug_in_that_keeps_the_model_from_our_check_stops_the_start(answers: dict[str, dict[str, Any]]) -> None:
    message = answers["around_and_stop before"]["outcome"]
    assert message.startswith("SeamError: SGLang ")
    assert "the scheduler was built but no model passed our check" in message
