# SPDX-License-Identifier: Apache-2.0
"""vLLM's platform from a vendor's facts: when vLLM takes it, and what it answers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm_engine import environment

pytestmark = pytest.mark.vllm

OURS = "vllm_fl_adapter.platform.DispatchPlatform"

#: A device that neither torch nor vLLM knows; its module in torch records what it is told.
VENDOR = """
import sys, types
from fl_dispatch import BackendImplKind, DevicePlatform, OpImpl, Vendor

def register(registry):
    registry.register(OpImpl("silu_and_mul", "vendor.acme", BackendImplKind.VENDOR, lambda obj, x: x, vendor="acme"))

told = []
module = types.ModuleType("acme_runtime")
module.set_device = lambda device: told.append(["set_device", device])
module.manual_seed_all = lambda seed: told.append(["seed", seed])
module.mem_get_info = lambda index: (30 + index, 100)
module.current_device = lambda: 2
sys.modules["acme_runtime"] = module

VENDOR = Vendor("acme", register, platform=DevicePlatform(
    "acme_chip", lambda: True, "accl", torch_module="acme_runtime", graphs=True, fp8=True, quantization=("w8a8",),
    compile_backend="eager", classes={classes!r},
))
"""
ASK = """
import json, sys
from vllm.platforms import current_platform as p
kind = type(p)
said = {"class": f"{kind.__module__}.{kind.__qualname__}", "out_of_tree": p.is_out_of_tree()}
for question in json.loads(sys.argv[1]):
    said[question] = eval(question)
sys.stdout.write("SAID " + json.dumps(said))
"""


def ask(questions: list[str], settings: dict[str, str], *plugins: Path) -> dict[str, Any]:
    """What vLLM's platform answers in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps(questions)],
        env=environment(settings, plugins),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said: dict[str, Any] = json.loads(done.stdout.partition("SAID ")[2])
    return said


@pytest.fixture
def acme(tmp_path: Path) -> Callable[..., Path]:
    """``acme(classes)``: the folder where the vendor is installed."""

    def install(classes: dict[str, str]) -> Path:
        info = tmp_path / "acme-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[fl_dispatch.vendors]\nacme = acme_vendor:VENDOR\n")
        (tmp_path / "acme_vendor.py").write_text(VENDOR.replace("{classes!r}", repr(classes)))
        return tmp_path

    return install


def test_a_vendors_cpu_platform_is_taken_and_answers_from_its_facts(plugin: Callable[[str], Path]) -> None:
    questions = [
        "p.device_type",
        "p.get_device_name(1)",
        "p.get_device_total_memory()",
        "p.get_current_memory_usage()",
        "p.get_device_capability().to_int()",
        "p.support_static_graph_mode()",
        "p.is_pin_memory_available()",
    ]
    said = ask(questions, {"SAMPLE_PLATFORM": "1"}, plugin("sample-platform"))
    assert list(said.values()) == [OURS, True, "cpu", "sample chip 1", 8 << 30, float(2 << 30), 42, False, False]


def test_where_the_vendors_device_is_not_here_vllm_keeps_its_own(plugin: Callable[[str], Path]) -> None:
    said = ask([], {"SAMPLE_PLATFORM": ""}, plugin("sample-platform"))
    assert said == {"class": "vllm.platforms.cpu.CpuPlatform", "out_of_tree": False}


def test_a_device_that_vllm_does_not_know_is_asked_through_torchs_module(acme: Callable[..., Path]) -> None:
    folder = acme({"vllm.worker": "acme_vendor.Worker", "vllm.graph_wrapper": "acme_vendor.Wrapper"})
    expected = {
        "p.device_type": "acme_chip",
        "p.dispatch_key": "PrivateUse1",
        "p.dist_backend": "accl",
        "p.supported_quantization": ["w8a8"],
        "p.get_compile_backend()": "eager",
        "p.supports_fp8()": True,
        "p.support_static_graph_mode()": True,
        "p.get_static_graph_wrapper_cls()": "acme_vendor.Wrapper",
        "p.get_device_total_memory()": 100,
        "p.get_current_memory_usage()": 68.0,  # of the current device, which is 2
        "p.get_device_capability()": None,
        "p.set_device(1)": None,
        "p.manual_seed_all(5)": None,
        "__import__('acme_vendor').told": [["set_device", 1], ["seed", 5]],
        "p.current_stream()": None,
    }
    assert ask(list(expected), {}, folder) == {"class": OURS, "out_of_tree": True, **expected}


def test_facts_without_a_worker_for_vllm_leave_vllm_alone(acme: Callable[..., Path]) -> None:
    assert ask([], {}, acme({}))["class"] == "vllm.platforms.cpu.CpuPlatform"
