# SPDX-License-Identifier: Apache-2.0
"""Hooks of other plug-ins beside ours, and SGLang in versions that do not exist: in SGLang's own loader and registry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine import distribution, load_in_forks

pytestmark = pytest.mark.sglang

Answers = dict[str, dict[str, Any]]

#: Another plug-in: what it does to what we hook too is in the variables of the case.
OTHER = """
import os
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

CALLS = []
SCHEDULER = "sglang.srt.managers.scheduler"
RUNNER = "sglang.srt.model_executor.model_runner"


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

    def hijack_own(result, layer, *args, **kwargs):
        CALLS.append(name)
        return layer.forward_native

    return locals()[kind]


def seam():
    from sglang.srt.layers.layernorm import RMSNorm

    for method in ("_resolve_forward_method", "dispatch_forward"):
        for owner in RMSNorm.__mro__:
            if method in vars(owner):
                return owner, method


def hooks():
    owner, method = seam()
    targets = {
        "scheduler": (SCHEDULER, "Scheduler.__init__"),
        "model": (RUNNER, "ModelRunner.load_model"),
        "seam": (owner.__module__, f"{owner.__qualname__}.{method}"),
    }
    kind = os.environ["OTHER_KIND"]
    types = {"hijack": "AFTER", "hijack_own": "AFTER", "around_and_stop": "AROUND"}
    for name in os.environ.get("OTHER_TARGETS", "scheduler,model,seam").split(","):
        for notation in os.environ.get("OTHER_NOTATION", "."):
            target = notation.join(targets[name])
            HookRegistry.register(target, hook(name, kind), HookType[types.get(kind, kind.upper())])
    if "OTHER_APPLIES" in os.environ:
        HookRegistry.apply_hooks()


def classes():
    from sglang.srt.layers.layernorm import RMSNorm
    from sglang.srt.managers.scheduler import Scheduler

    def counted(cls):
        def __init__(self, *args, **kwargs):
            CALLS.append(cls.__name__)
            cls.__init__(self, *args, **kwargs)

        return type(f"Other{cls.__name__}", (cls,), {"__init__": __init__})

    for cls in (RMSNorm, Scheduler):
        HookRegistry.register(f"{cls.__module__}.{cls.__name__}", counted(cls), HookType.REPLACE)


def seam_moved():
    while found := seam():
        delattr(*found)


def seam_inert():
    from sglang.srt.layers.layernorm import RMSNorm

    own = RMSNorm.__init__

    def __init__(self, *args, **kwargs):
        own(self, *args, **kwargs)
        self._forward_method = lambda *args: args[0]

    RMSNorm.__init__ = __init__


def register():
    globals()[os.environ.get("OTHER", "hooks")]()
"""
KINDS = ("before", "after", "around", "replace")
RAN = [["rms_norm", "reference", 1], ["silu_and_mul", "reference", 1]]
TARGETS = {"scheduler", "model", "seam"}
UNTESTED = "SGLang 0.5.99 is not a version sglang-fl was tested with (SGLang 0.5.11 to 0.5.23)"

#: Variables of the other plug-in, and whether it comes before or after ours.
CASES: dict[str, tuple[dict[str, str], str]] = {
    **{f"{kind} {place}": ({"OTHER_KIND": kind}, place) for kind in KINDS for place in ("before", "after")},
    "colon": ({"OTHER_KIND": "around", "OTHER_NOTATION": ":"}, "after"),
    "class": ({"OTHER": "classes"}, "before"),
    "applied": ({"OTHER_KIND": "around", "OTHER_APPLIES": "1"}, "before"),
    "applied, both": ({"OTHER_KIND": "around", "OTHER_NOTATION": ".:", "OTHER_TARGETS": "model"}, "before"),
    "hijack": ({"OTHER_KIND": "hijack", "OTHER_TARGETS": "seam"}, "after"),
    "hijack, own": ({"OTHER_KIND": "hijack_own", "OTHER_TARGETS": "seam"}, "after"),
    "stop": ({"OTHER_KIND": "around_and_stop", "OTHER_TARGETS": "scheduler"}, "before"),
    "newer, moved": ({"OTHER": "seam_moved"}, "before"),
    "newer, inert": ({"OTHER": "seam_inert"}, "before"),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Every case of this file, in forks of one process that has imported SGLang."""
    folder = tmp_path_factory.mktemp("hooks")
    other = distribution(folder / "other", "other_hooks", OTHER, "[sglang.srt.plugins]", "other = other_hooks:register")
    report = {"SGLANG_FL_REPORT": str(folder / "report.json")}
    cases: dict[str, dict[str, Any]] = {
        name: {"variables": {**report, **variables}, place: [str(other)]} for name, (variables, place) in CASES.items()
    }
    cases |= {"alone": {"variables": report}, "newer": {"variables": report}}
    for strict in "01":
        cases[f"ray, strict {strict}"] = {
            "variables": {"RAY": "1", "SGLANG_FL_STRICT": strict, "SGLANG_FL_PREFER": "reference"}
        }
    unknown = {"SGLANG_FL_PER_OP": "rms_norm=impl:vendor.nowhere|reference"}
    cases["unknown name"] = {"variables": unknown}
    cases["unknown name, off"] = {"variables": {**unknown, "SGLANG_FL_OOT_WHITELIST": "none"}}
    newer = _sglang_of_another_version(folder / "newer")
    for name in cases:
        if name.startswith("newer"):
            cases[name].setdefault("before", []).insert(0, str(newer))
    return load_in_forks({name: {**case, "worker": True} for name, case in cases.items()}, folder)


def _sglang_of_another_version(folder: Path) -> Path:
    """A folder that has importlib.metadata see SGLang 0.5.99."""
    info = folder / "sglang-0.5.99.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.99\n", encoding="utf-8")
    return folder


# -- hooks of others


def test_every_layer_of_the_model_is_dispatched(answers: Answers) -> None:
    alone = answers["alone"]
    assert (alone["outcome"], alone["ran"], alone["warnings"]) == ("loaded", RAN, [])


def test_arguments_of_a_newer_version_are_passed_on_by_our_hooks(answers: Answers) -> None:
    """The scheduler and the model loader of the test take one that no SGLang has."""
    assert answers["alone"]["done"] == ["__init__ of a newer version", "load_model of a newer version"]


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
def test_hooks_of_another_plug_in_on_our_targets_run_and_ours_stay_in_effect(
    answers: Answers, kind: str, place: str
) -> None:
    case = answers[f"{kind} {place}"]
    assert (case["outcome"], case["ran"], set(case["others"])) == ("loaded", RAN, TARGETS)


def test_hooks_on_our_targets_in_the_notation_with_a_colon_run_and_ours_stay_in_effect(answers: Answers) -> None:
    case = answers["colon"]
    assert (case["outcome"], case["ran"], set(case["others"])) == ("loaded", RAN, TARGETS)


def test_classes_replaced_by_another_plug_in_are_hooked_and_dispatched(answers: Answers) -> None:
    case = answers["class"]
    assert (case["outcome"], case["ran"], set(case["others"])) == ("loaded", RAN, {"RMSNorm", "Scheduler"})


def test_hooks_that_another_plug_in_had_applied_before_ours_do_not_keep_ours_out(answers: Answers) -> None:
    case = answers["applied"]
    assert (case["outcome"], case["ran"], set(case["others"])) == ("loaded", RAN, TARGETS)


def test_a_target_whose_hooks_were_applied_under_both_its_names_stops_the_start(answers: Answers) -> None:
    message = answers["applied, both"]["outcome"]
    target = "sglang.srt.model_executor.model_runner.ModelRunner.load_model"
    assert message.startswith(
        f"SeamError: SGLang already applied the hooks of other plug-ins on {target}, under both names"
    )
    assert message.endswith("let those plug-ins register their hooks and leave HookRegistry.apply_hooks() to SGLang")


@pytest.mark.parametrize("case", ["hijack", "hijack, own"])
def test_a_plug_in_that_answers_for_the_layers_in_our_stead_stops_the_start(answers: Answers, case: str) -> None:
    """Also where it answers with the layer's own method, which SGLang takes by itself in some modes."""
    message = answers[case]["outcome"]
    assert message.startswith("SeamError: SGLang ")
    assert "is not in effect: RMSNorm runs " in message
    assert "Another plug-in may replace it (look for hooks on the same target)" in message


def test_a_plug_in_that_keeps_the_model_from_our_check_stops_the_start(answers: Answers) -> None:
    message = answers["stop"]["outcome"]
    assert message.startswith("SeamError: SGLang ")
    assert "the scheduler was built but no model passed our check" in message


def test_workers_under_ray_where_sglang_loads_no_plug_in_are_warned_of_and_refused_by_strict(answers: Answers) -> None:
    text = "loads no plug-in in the workers that --use-ray starts: they serve without our operators"
    (warning,) = answers["ray, strict 0"]["warnings"]
    assert f"{text}; leave --use-ray out to have them" in warning
    refusal = answers["ray, strict 1"]["outcome"]
    assert refusal.startswith("SeamError: strict, and SGLang ")
    assert f"{text}; leave --use-ray out, or turn strict off" in refusal


def test_a_policy_that_names_what_nothing_has_stops_the_launcher_and_switched_off_it_stops_nothing(
    answers: Answers,
) -> None:
    assert answers["unknown name"]["outcome"].startswith("ConfigError: token 'impl:vendor.nowhere': no implementation")
    off = answers["unknown name, off"]
    assert (off["outcome"], off["ran"]) == ("loaded", [])


# -- a version that nobody has tested


def test_an_untested_version_serves_with_a_warning_where_the_seam_is_in_effect(answers: Answers) -> None:
    newer = answers["newer"]
    assert (newer["outcome"], newer["ran"], newer["warnings"]) == ("loaded", RAN, [UNTESTED])


def test_an_untested_version_without_the_seam_is_refused_with_the_tested_range(answers: Answers) -> None:
    message = answers["newer, moved"]["outcome"]
    assert message.startswith(
        "sglang-fl refuses to start: SGLang 0.5.99: sglang.srt.layers.layernorm.RMSNorm has neither "
    )
    assert "sglang-fl was tested with SGLang 0.5.11 to 0.5.23; install one of these, or a newer sglang-fl" in message


def test_an_untested_version_whose_layers_do_not_ask_the_seam_is_refused(answers: Answers) -> None:
    message = answers["newer, inert"]["outcome"]
    assert message.startswith("SeamError: SGLang 0.5.99: the seam ")
    assert "is not in effect: RMSNorm runs " in message
    assert message.endswith("sglang-fl was tested with SGLang 0.5.11 to 0.5.23")
