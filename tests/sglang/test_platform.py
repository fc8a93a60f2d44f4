# SPDX-License-Identifier: Apache-2.0
"""SGLang's platform from a vendor's facts: which one real SGLang takes, and what it answers, on both generations."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("sglang")

from sglang.srt import platforms, plugins
from sglang.srt.platforms import interface
from sglang.srt.utils import common

import sglang_fl.platform as ours
from fl_dispatch import DevicePlatform
from sglang_fl.platform_choice import CPU, ENTRY_POINT, PLATFORM_CLASS, platform_class_name
from sglang_fl.platform_subsystems import DECLARES_CAPABILITIES

Install = Callable[..., None]

VENDOR = """
from fl_dispatch import BackendImplKind, DevicePlatform, OpImpl, Vendor

def register(registry):
    registry.register(OpImpl("silu_and_mul", "vendor.{name}", BackendImplKind.VENDOR, lambda obj, x: x, vendor="{name}"))

VENDOR = Vendor("{name}", register, platform=DevicePlatform("{device}", lambda: {present!r}, "{name}_ccl"))
"""
PLATFORM = """
from sglang.srt.platforms.interface import SRTPlatform
from sglang.srt.platforms.device_mixin import PlatformEnum

class Other(SRTPlatform):
    _enum = PlatformEnum.OOT
    device_name = "other"

def activate():
    return {answer!r}

def register():
    raise RuntimeError("hooks of a platform that was not selected")
"""


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the caller's environment decides, and no accelerator of this machine."""
    for name in ("SGLANG_PLATFORM", "SGLANG_PLUGINS", "SGLANG_USE_CPU_ENGINE"):
        monkeypatch.delenv(name, raising=False)
    accelerator(monkeypatch, None)


def accelerator(monkeypatch: pytest.MonkeyPatch, kind: str | None) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: kind is not None)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: SimpleNamespace(type=kind))


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """``install(name, code, **entry points by group)``: a distribution with one module."""

    def install(name: str, code: str, **groups: str) -> None:
        folder = tmp_path / name
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (folder / f"{name}.py").write_text(code)
        lines = [f"[{group.replace('__', '.')}]\n{name} = {name}:{target}\n" for group, target in groups.items()]
        (info / "entry_points.txt").write_text("".join(lines))
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delitem(sys.modules, name, raising=False)

    return install


def vendor(install: Install, name: str, device: str, present: bool | str = True) -> None:
    install(name, VENDOR.format(name=name, device=device, present=present), fl_dispatch__vendors="VENDOR")


def other_platform(install: Install, name: str = "other_chip", answer: str | None = "other_chip.Other") -> None:
    install(name, PLATFORM.format(answer=answer), sglang__srt__platforms="activate", sglang__srt__plugins="register")


def resolved() -> Any:
    """What real SGLang resolves here."""
    return platforms._resolve_platform()


# -- which platform


def test_a_machine_without_accelerator_gets_the_cpu_platform() -> None:
    found = resolved()
    assert type(found) is ours.DispatchPlatform
    assert found.facts is CPU
    assert found.is_out_of_tree()


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_an_accelerator_of_sglangs_keeps_sglangs_platform(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    accelerator(monkeypatch, kind)
    assert platform_class_name() is None
    assert not isinstance(resolved(), ours.DispatchPlatform)


def test_sglangs_own_cpu_engine_keeps_precedence_unless_we_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    assert platform_class_name() is None
    monkeypatch.setenv("SGLANG_PLATFORM", ENTRY_POINT)
    assert isinstance(resolved(), ours.DispatchPlatform)


def test_a_device_that_sglang_does_not_know_gets_the_vendors_facts(install: Install) -> None:
    vendor(install, "acme", "acme_chip")
    found = resolved()
    assert type(found) is ours.DispatchPlatform
    assert (found.device_type, found.get_torch_distributed_backend_str()) == ("acme_chip", "acme_ccl")


def test_a_vendor_whose_device_is_not_here_changes_nothing(install: Install) -> None:
    vendor(install, "acme", "acme_chip", "no /dev/acme")
    assert resolved().facts is CPU


def test_a_denied_vendor_gives_no_platform(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    vendor(install, "acme", "acme_chip")
    monkeypatch.setenv("SGLANG_FL_DENY_VENDORS", "acme")
    assert resolved().facts is CPU


def test_a_device_with_a_platform_of_sglangs_stays_with_it_unless_we_are_named(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor(install, "acme", "npu")
    assert platform_class_name() is None
    monkeypatch.setenv("SGLANG_PLATFORM", ENTRY_POINT)
    assert resolved().device_type == "npu"


def test_a_device_beside_another_accelerator_needs_to_be_asked_for(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor(install, "acme", "acme_chip")
    accelerator(monkeypatch, "cuda")
    assert platform_class_name() is None
    accelerator(monkeypatch, "acme_chip")
    assert platform_class_name() == PLATFORM_CLASS
    accelerator(monkeypatch, "cuda")
    monkeypatch.setenv("SGLANG_PLATFORM", ENTRY_POINT)
    assert resolved().device_type == "acme_chip"


def test_of_several_vendors_with_a_device_the_first_by_name_is_taken_and_that_is_said(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    vendor(install, "zeta", "zeta_chip")
    vendor(install, "acme", "acme_chip")
    with caplog.at_level(logging.WARNING, "sglang_fl"):
        assert resolved().device_type == "acme_chip"
    assert "several vendors have a device here (acme, zeta); taking acme" in caplog.text


def test_activation_initialises_nothing(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither SGLang's current platform nor the vendor's SDK nor torch's module for the device."""
    vendor(install, "acme", "acme_chip")
    monkeypatch.setattr(platforms, "_current_platform", None)
    monkeypatch.setattr(ours.DispatchPlatform, "_initialised", False)
    assert platform_class_name() == PLATFORM_CLASS
    assert platforms._current_platform is None
    assert not ours.DispatchPlatform._initialised
    assert "torch.acme_chip" not in sys.modules


def test_activation_says_nothing_of_a_wrong_setting_which_the_plug_in_stops_at(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor(install, "acme", "acme_chip")
    monkeypatch.setenv("SGLANG_FL_STRICT", "perhaps")
    assert platform_class_name() == PLATFORM_CLASS
    assert resolved().facts is CPU


def test_the_classes_of_sglang_that_a_vendor_package_names_are_there() -> None:
    from fl_vendor_ascend import PLATFORM as facts

    root = Path(platforms.__file__).parents[3]
    named = {dotted for purpose, dotted in facts.classes.items() if purpose.startswith("sglang.")}
    assert named
    for dotted in named:
        module, _, name = dotted.rpartition(".")
        # Read, not imported: that would need the device.
        assert f"class {name}(" in (root / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")


# -- the selection rules of SGLang


def test_sglang_platform_with_an_unknown_name_stops_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_PLATFORM", "nobody")
    with pytest.raises(RuntimeError, match="SGLANG_PLATFORM='nobody' not found"):
        resolved()


def test_sglang_platform_that_names_us_where_there_is_nothing_stops_sglang_and_we_say_why(
    install: Install, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    vendor(install, "acme", "acme_chip", "no /dev/acme")
    accelerator(monkeypatch, "cuda")
    monkeypatch.setenv("SGLANG_PLATFORM", ENTRY_POINT)
    with caplog.at_level(logging.WARNING, "sglang_fl"), pytest.raises(RuntimeError, match="returned None"):
        resolved()
    assert "this machine has a cuda device, and no vendor package gives facts about it" in caplog.text
    assert "acme (acme 1.0): no /dev/acme" in caplog.text


def test_two_platforms_that_want_to_run_stop_sglang_until_one_is_named(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_platform(install)
    with pytest.raises(RuntimeError, match="Multiple platform plugins activated"):
        resolved()
    monkeypatch.setenv("SGLANG_PLATFORM", ENTRY_POINT)
    assert isinstance(resolved(), ours.DispatchPlatform)
    monkeypatch.setenv("SGLANG_PLATFORM", "other_chip")
    assert resolved().device_name == "other"


def test_only_the_named_platform_is_imported_and_without_a_name_a_broken_one_is_passed_over(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("broken_chip", "raise ImportError('no SDK')", sglang__srt__platforms="activate")
    assert isinstance(resolved(), ours.DispatchPlatform)
    install("other_sdk", "", sglang__srt__platforms="activate")
    monkeypatch.setenv("SGLANG_PLATFORM", ENTRY_POINT)
    assert isinstance(resolved(), ours.DispatchPlatform)
    assert "other_sdk" not in sys.modules


def test_the_hooks_of_a_platform_that_is_not_the_named_one_are_skipped_ours_too(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_platform(install)
    group = plugins.GENERAL_PLUGINS_GROUP
    for named, loaded in ((ENTRY_POINT, ENTRY_POINT), ("other_chip", "other_chip")):
        monkeypatch.setenv("SGLANG_PLATFORM", named)
        found = set(plugins.load_plugins_by_group(group, excluded_dists=plugins._get_excluded_dists()))
        assert found & {ENTRY_POINT, "other_chip"} == {loaded}


def test_sglang_plugins_filters_platforms_that_are_not_named(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    other_platform(install)
    monkeypatch.setenv("SGLANG_PLUGINS", ENTRY_POINT)
    assert isinstance(resolved(), ours.DispatchPlatform)
    monkeypatch.setenv("SGLANG_PLUGINS", "other_chip")
    assert resolved().device_name == "other"
    monkeypatch.setenv("SGLANG_PLATFORM", ENTRY_POINT)
    assert isinstance(resolved(), ours.DispatchPlatform)


# -- the interface


def platform(**facts: Any) -> Any:
    return ours.DispatchPlatform(DevicePlatform("acme_chip", lambda: True, "acme_ccl", **facts))


class Module:
    """torch's module for a device."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__") or name in {"get_device_name", "get_device_properties"}:
            raise AttributeError(name)
        return lambda *args: self.calls.append((name, *args))

    def mem_get_info(self, index: int) -> tuple[int, int]:
        return 30 + index, 100

    def current_device(self) -> int:
        return 2


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Module:
    found = Module()
    monkeypatch.setitem(sys.modules, "torch.acme_chip", found)
    return found


def test_identity() -> None:
    one = platform()
    assert one.is_out_of_tree()
    assert not any((one.is_cuda(), one.is_rocm(), one.is_npu(), one.is_cpu(), one.is_xpu(), one.is_cuda_alike()))
    assert (one.device_name, one.device_type) == ("acme_chip", "acme_chip")


def test_device_operations_go_to_torchs_module_for_the_device(module: Module) -> None:
    one = platform()
    one.set_device("d")
    one.synchronize()
    one.empty_cache()
    one.seed_everything(5)
    assert module.calls == [("set_device", "d"), ("synchronize",), ("empty_cache",), ("manual_seed_all", 5)]
    assert torch.initial_seed() == 5


def test_memory_is_the_modules_and_usage_is_of_the_current_device(module: Module) -> None:
    one = platform()
    assert one.get_available_memory(1) == (31, 100)
    assert one.get_device_total_memory() == 100
    assert one.get_current_memory_usage() == 100 - 32
    assert one.get_current_memory_usage(SimpleNamespace(index=0)) == 100 - 30


def test_names_capability_and_memory_are_the_facts_where_they_say_so() -> None:
    one = platform(
        device_name=lambda i: f"Acme {i}", device_capability=lambda i: (9, i), memory=lambda i: (7, 8), pin_memory=True
    )
    assert one.get_device_name(1) == "Acme 1"
    assert one.get_device_capability(2).as_version_str() == "9.2"
    assert one.get_device_total_memory() == 8
    assert one.is_pin_memory_available()
    assert one.is_pin_memory_available("acme_chip:1")
    assert not one.is_pin_memory_available("cpu")


def test_without_facts_there_is_a_name_a_uuid_and_no_capability(module: Module) -> None:
    one = platform()
    assert one.get_device_name().startswith("acme_chip")
    assert one.get_device_uuid(0) != one.get_device_uuid(1)
    assert one.get_device_capability() is None
    assert not one.is_pin_memory_available()


def test_a_module_that_nothing_brought_is_named_with_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"no module 'torch.acme_chip'; the setup\(\) of its DevicePlatform"):
        platform().synchronize()


def test_communicator(module: Module) -> None:
    one = platform(classes={"sglang.communicator": "collections.OrderedDict"})
    assert one.get_torch_distributed_backend_str() == "acme_ccl"
    assert one.get_communicator_class().__name__ == "OrderedDict"
    assert platform().get_communicator_class() is None
    on_cpu = ours.DispatchPlatform(CPU)
    assert str(on_cpu.get_group_coordinator_device(3)) == "cpu"
    assert str(on_cpu.get_device(1)) == "cpu"
    assert on_cpu.get_device(None) == "cpu"


@pytest.mark.parametrize(
    ("facts", "graph", "piecewise"),
    [
        ({}, False, False),
        ({"graphs": True, "piecewise_graphs": True}, False, False),
        ({"graphs": True, "classes": {"sglang.graph_runner": "collections.OrderedDict"}}, True, False),
        ({"piecewise_graphs": True, "classes": {"sglang.piecewise_backend": "collections.OrderedDict"}}, False, True),
        ({"classes": {"sglang.graph_runner": "collections.OrderedDict"}}, False, False),
    ],
)
def test_graphs_need_a_declaration_and_a_class_to_capture_with(
    facts: dict[str, Any], graph: bool, piecewise: bool
) -> None:
    one = platform(triton=True, fp8=True, **facts)
    assert (one.support_cuda_graph(), one.support_piecewise_cuda_graph(), one.supports_fp8()) == (
        graph,
        piecewise,
        True,
    )
    if DECLARES_CAPABILITIES:
        flags = one.capabilities
        assert (flags.graph_capture, flags.piecewise_graph, flags.supports_triton) == (graph, piecewise, True)


def test_every_class_of_the_vendor_is_handed_out() -> None:
    purposes = {
        "graph_runner": lambda p: p.get_graph_runner_cls(),
        "full_graph_backend": lambda p: p.get_full_graph_backend_cls(),
        "piecewise_backend": lambda p: p.get_piecewise_backend_cls(),
        "paged_allocator": lambda p: p.get_paged_allocator_cls(),
        "kv_pool.mha": lambda p: p.get_kv_pool_cls(kind="mha"),
        "kv_pool.mla": lambda p: p.get_kv_pool_cls(kind="mla"),
        "kv_pool.dsa": lambda p: p.get_kv_pool_cls(kind="dsa"),
        "quantization.w8": lambda p: p.get_quantization_config("w8"),
        "speculative_worker.EAGLE": lambda p: p.get_speculative_worker_cls("EAGLE"),
        "speculative_graph_runner.draft_decode": lambda p: p.get_speculative_graph_runner_cls("EAGLE", "draft_decode"),
    }
    one = platform(classes={f"sglang.{purpose}": "collections.OrderedDict" for purpose in purposes})
    for purpose, ask in purposes.items():
        assert ask(one).__name__ == "OrderedDict", purpose
    assert one.supports_speculative_algorithm("EAGLE")
    assert not one.supports_speculative_algorithm("NGRAM")
    assert one.supports_speculative_draft_attention_backend("EAGLE", "torch_native")
    assert not one.supports_speculative_draft_attention_backend("EAGLE", "fa3")


def test_without_classes_of_the_vendor_sglang_builds_its_own_memory() -> None:
    one = platform()
    if DECLARES_CAPABILITIES:
        assert {one.get_kv_pool_cls(kind=kind) for kind in ("mha", "mla", "dsa")} == {None}
        assert one.get_paged_allocator_cls() is None
        assert not hasattr(one, "get_mha_kv_pool_cls")  # its presence is warned of
    else:
        assert one.get_mha_kv_pool_cls().__name__ == "MHATokenToKVPool"
        assert one.get_mla_kv_pool_cls().__name__ == "MLATokenToKVPool"
        assert one.get_dsa_kv_pool_cls().__name__ in {"DSATokenToKVPool", "NSATokenToKVPool"}
        assert one.get_nsa_kv_pool_cls() is one.get_dsa_kv_pool_cls()
        assert one.get_paged_allocator_cls().__name__ == "PagedTokenToKVPoolAllocator"


def test_quantization_is_refused_where_the_facts_list_others() -> None:
    assert platform().get_quantization_config("fp8") is None
    one = platform(quantization=("w8a8", "fp8"))
    assert one.supported_quantization == ["w8a8", "fp8"]
    assert one.get_quantization_config("fp8") is None
    with pytest.raises(ValueError, match="'awq' does not work on acme_chip; what does: w8a8, fp8"):
        one.get_quantization_config("awq")


def test_compiler_attention_layers_and_profiler() -> None:
    one = platform(
        compile_backend="acme", attention_backend="acme_attn", native_forward="acme", profiler_activity="PrivateUse1"
    )
    assert one.get_compile_backend() == one.get_compile_backend("npugraph_ex") == "acme"
    assert one.get_default_attention_backend() == "acme_attn"
    assert one.get_dispatch_key_name() == "acme"
    assert one.get_torch_profiler_activity_str() == "PrivateUse1"
    assert one.get_torch_profiler_activity() is torch.profiler.ProfilerActivity.PrivateUse1


def test_no_method_of_sglangs_interface_is_left_that_raises_by_default() -> None:
    """Whatever this version's base class leaves unanswered is answered."""
    unanswered = set()
    for name, member in [*vars(interface.SRTPlatform).items(), *vars(interface.DeviceMixin).items()]:
        code = getattr(getattr(member, "__func__", member), "__code__", None)
        if code is not None and "NotImplementedError" in code.co_names:
            unanswered.add(name)
    assert unanswered
    left = {name for name in unanswered if getattr(ours.DispatchPlatform, name) is getattr(interface.SRTPlatform, name)}
    assert left == set()


# -- life cycle


def test_server_arguments_are_filled_in_only_where_the_user_said_nothing(caplog: pytest.LogCaptureFixture) -> None:
    one = platform(server_args={"page_size": 128, "sampling_backend": "pytorch", "no_such": 1})
    args = SimpleNamespace(device=None, attention_backend="mine", page_size=None, sampling_backend="theirs")
    with caplog.at_level(logging.WARNING, "sglang_fl"):
        one.apply_server_args_defaults(args)
    assert vars(args) == {
        "device": "acme_chip",
        "attention_backend": "mine",
        "page_size": 128,
        "sampling_backend": "theirs",
    }
    assert "has no server argument 'no_such'" in caplog.text


@pytest.mark.parametrize("given", [{}, {"device": "cpu", "max_running_requests": 5}])
def test_real_server_arguments_take_the_defaults_and_keep_what_is_set(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    from sglang.srt.server_args import ServerArgs

    facts = dataclasses.replace(CPU, server_args={"max_running_requests": 3})
    monkeypatch.setattr(platforms.current_platform, "facts", facts)
    if not given and "current_platform" not in inspect.getsource(common.get_device):
        # The first versions look for a device before they ask any platform: there the user has to name it.
        with pytest.raises(RuntimeError, match="No accelerator"):
            ServerArgs(model_path=os.environ["FL_TEST_MODEL"], skip_tokenizer_init=True)
        return
    args: Any = ServerArgs(model_path=os.environ["FL_TEST_MODEL"], skip_tokenizer_init=True, **given)
    if hasattr(args, "resolve_once"):  # newer SGLang keeps what was resolved beside what was given
        from sglang.srt.arg_groups.model_override_base import resolving_view

        args.resolve_once()
        args = resolving_view(args)
    assert (args.device, args.attention_backend) == ("cpu", "torch_native")
    assert args.max_running_requests == given.get("max_running_requests", 3)


def test_the_backend_is_set_up_once_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "installed", object)
    monkeypatch.setattr(ours.DispatchPlatform, "_initialised", False)
    calls: list[int] = []
    for one in (platform(setup=lambda: calls.append(1)), platform(setup=lambda: calls.append(2))):
        one.init_backend()
        one.init_backend()
    assert calls == [1]


def test_a_setup_that_fails_stops_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "installed", object)
    monkeypatch.setattr(ours.DispatchPlatform, "_initialised", False)
    with pytest.raises(ZeroDivisionError):
        platform(setup=lambda: 1 // 0).init_backend()


def test_our_platform_without_our_hooks_stops_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "installed", lambda: None)
    monkeypatch.delitem(sys.modules, "sglang.multimodal_gen.runtime.platforms", raising=False)
    with pytest.raises(SystemExit, match="SGLANG_PLUGINS probably leaves out 'sglang_fl'"):
        platform().init_backend()
