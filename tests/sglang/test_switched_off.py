# SPDX-License-Identifier: Apache-2.0
"""SGLang's variables that keep our hooks out without a word, and another vendor's platform with our operators."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine import CALLS_PER_FORWARD, distribution, load_in_forks, serve

from sglang_fl.versions import installed_version, release

pytestmark = pytest.mark.sglang

#: Another vendor's package: plain PyTorch on the CPU, with nothing of ours in it.
OTHER = """
import os

import psutil
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform


class OtherPlatform(SRTPlatform):
    _enum = PlatformEnum.OOT
    device_name = "other_chip"
    device_type = "cpu"

    def get_device(self, device_id=None):
        return "cpu"

    def get_default_attention_backend(self):
        return "torch_native"

    def get_torch_distributed_backend_str(self):
        return "gloo"

    def get_device_total_memory(self, device_id=0):
        return psutil.virtual_memory().total

    def get_current_memory_usage(self, device=None):
        return psutil.virtual_memory().used

    def get_available_memory(self, device_id=0):
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    def set_device(self, device):
        pass

    def apply_server_args_defaults(self, server_args):
        server_args.attention_backend = "torch_native"
        server_args.sampling_backend = "pytorch"

    def init_backend(self):
        print("the platform of other_chip is set up", flush=True)


def activate():
    return "other_chip.OtherPlatform" if os.environ.get("OTHER_CHIP") == "here" else None


def register():
    if os.environ.get("OTHER_CHIP_LOADS_US"):
        import sglang_fl

        sglang_fl.load_plugin()
"""
PLATFORM = ("[sglang.srt.platforms]", "other_chip = other_chip:activate")
HOOKS = ("[sglang.srt.plugins]", "other_chip = other_chip:register")
LOADER = "sglang_fl:load_plugin"

#: Variables, which packages are installed beside ours, and how many hooks of ours SGLang then has on the place where it decides.
CASES: dict[str, tuple[dict[str, str], list[str], int]] = {
    "nothing is set": ({}, ["other"], 1),
    "our platform is named": ({"SGLANG_PLATFORM": "sglang_fl"}, ["other"], 1),
    "another platform is named": ({"SGLANG_PLATFORM": "other_chip"}, ["other"], 0),
    "no platform has the name": ({"SGLANG_PLATFORM": "other_chop"}, ["other"], 0),
    "the list has us": ({"SGLANG_PLUGINS": "other_chip, sglang_fl"}, ["other"], 1),
    "the list has others": ({"SGLANG_PLUGINS": "other_chip"}, ["other"], 0),
    "the list has our distribution's name": ({"SGLANG_PLUGINS": "sglang-fl"}, ["other"], 0),
    "the list is blank": ({"SGLANG_PLUGINS": " "}, ["other"], 0),
    "a distribution without a platform loads us": ({"SGLANG_PLATFORM": "other_chip"}, ["other", "my_ops"], 1),
    "and is in the list": ({"SGLANG_PLATFORM": "other_chip", "SGLANG_PLUGINS": "my_ops"}, ["other", "my_ops"], 1),
    "and is not in the list": (
        {"SGLANG_PLATFORM": "other_chip", "SGLANG_PLUGINS": "sglang_fl"},
        ["other", "my_ops"],
        0,
    ),
    "we are loaded twice": ({}, ["other", "my_ops"], 1),
    "the other's entry point loads us": ({"SGLANG_PLATFORM": "other_chip"}, ["other with us"], 1),
}
CALLED = {"SGLANG_PLATFORM": "other_chip", "OTHER_CHIP_LOADS_US": "1"}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder where a package is installed."""
    folder = tmp_path_factory.mktemp("packages")
    with_us = (*HOOKS, f"other_chip_operators = {LOADER}", *PLATFORM)
    packages = {
        "other": distribution(folder / "other", "other_chip", OTHER, *HOOKS, *PLATFORM),
        "other with us": distribution(folder / "with_us", "other_chip", OTHER, *with_us),
        "my_ops": distribution(folder / "my_ops", "my_ops", "", "[sglang.srt.plugins]", f"my_ops = {LOADER}"),
    }
    return packages.__getitem__


@pytest.fixture(scope="module")
def answers(package: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    cases = {
        name: {
            "variables": {**variables, **_with_device(variables)},
            "before": [str(package(each)) for each in packages],
        }
        for name, (variables, packages, _) in CASES.items()
    }
    cases["the other's hooks call us"] = {
        "variables": {**CALLED, **_with_device(CALLED)},
        "before": [str(package("other"))],
    }
    return load_in_forks(cases, tmp_path_factory.mktemp("cases"))


def _with_device(variables: dict[str, str]) -> dict[str, str]:
    """The other chip is there where it is asked for: early versions ask as soon as layers are imported."""
    return {"OTHER_CHIP": "here"} if variables.get("SGLANG_PLATFORM") == "other_chip" else {}


@pytest.mark.parametrize("case", CASES)
def test_sglang_loads_our_hooks_once_or_passes_over_them_without_a_word(
    answers: dict[str, dict[str, Any]], case: str
) -> None:
    answer = answers[case]
    assert (answer["outcome"], answer["hooks"], answer["warnings"]) == ("loaded", CASES[case][2], [])


@pytest.mark.parametrize("case", CASES)
def test_doctor_finds_a_fault_exactly_where_sglang_passes_over_our_hooks(
    answers: dict[str, dict[str, Any]], case: str
) -> None:
    assert bool(answers[case]["faults"]) == (answers[case]["hooks"] == 0), answers[case]


def test_hooks_of_another_vendor_can_load_us(answers: dict[str, dict[str, Any]]) -> None:
    assert answers["the other's hooks call us"]["hooks"] == 1


def test_the_processes_that_load_plug_ins_are_those_that_the_page_names() -> None:
    """Read from the installed SGLang: where it changes, docs/sglang.md has to follow."""
    import sglang

    root = Path(sglang.__file__).parent / "srt"
    files = {
        "launcher": "entrypoints/engine.py",
        "scheduler": "managers/scheduler.py",
        "detokenizer": "managers/detokenizer_manager.py",
        "data-parallel controller": "managers/data_parallel_controller.py",
        "scheduler under Ray": "ray/scheduler_actor.py",
    }
    loading = {name for name, file in files.items() if "load_plugins()" in (root / file).read_text(encoding="utf-8")}
    of_newer = {"detokenizer", "data-parallel controller"} if release(installed_version()) >= (0, 5, 22) else set()
    assert loading == {"launcher", "scheduler"} | of_newer


def test_a_model_is_served_on_another_vendors_platform_with_our_operators(
    package: Callable[[str], Path], tmp_path: Path
) -> None:
    settings = {"SGLANG_PLATFORM": "other_chip", "OTHER_CHIP": "here"}
    run = serve(tmp_path, settings, plugins=[package("other"), package("my_ops")])
    assert "the platform of other_chip is set up" in run.log
    assert run.ran() == run.expected(dict.fromkeys(CALLS_PER_FORWARD, "reference"))
    assert run.equal == 2
