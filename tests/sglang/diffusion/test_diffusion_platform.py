# SPDX-License-Identifier: Apache-2.0
"""Our platforms in SGLang Diffusion: every interface of its contract."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("diffusion_plugins", exc_type=ImportError)

from diffusion_case import Install, facts, vendor
from sglang.multimodal_gen.runtime import platforms
from sglang.multimodal_gen.runtime.platforms import cpu, cuda, interface

from fl_dispatch import DevicePlatform
from sglang_fl.diffusion.choice import FACTS_PLATFORM, OWN_PLATFORM
from sglang_fl.diffusion.platform import DispatchPlatform

pytestmark = pytest.mark.usefixtures("fresh")


class Module:
    """torch's module for a device."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__") or name in {"get_device_name", "get_device_properties"}:
            raise AttributeError(name)
        return lambda *args: self.calls.append((name, *args))

    def mem_get_info(self, index: int) -> tuple[int, int]:
        return (30 + index) << 30, 100 << 30

    def current_device(self) -> int:
        return 2


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Module:
    found = Module()
    monkeypatch.setitem(sys.modules, "torch.acme_chip", found)
    return found


def test_the_class_is_constructed_without_arguments(install: Install) -> None:
    vendor(install, "acme", "acme_chip")
    one = platforms._load_platform_class(FACTS_PLATFORM, external=True)()
    assert one.device_type == "acme_chip"
    assert platforms._load_platform_class(OWN_PLATFORM, external=True)().device_type == "cpu"


def test_the_class_without_a_vendors_device_says_so() -> None:
    with pytest.raises(RuntimeError, match="no vendor package has a device here"):
        DispatchPlatform()


def test_torchs_dispatch_key_and_the_name_for_layers_are_apart() -> None:
    one = DispatchPlatform(facts(dispatch_key="PrivateUse1", native_forward="acme"))
    assert (one.get_torch_library_dispatch_key(), one.get_dispatch_key_name()) == ("PrivateUse1", "acme")


def test_identity_is_out_of_tree_and_none_of_sglangs() -> None:
    one = DispatchPlatform(facts())
    assert one.is_out_of_tree()
    assert not any(
        getattr(one, f"is_{name}")()
        for name in ("cuda", "rocm", "npu", "cpu", "xpu", "mps", "musa", "tpu", "cuda_alike", "hip")
    )
    assert DispatchPlatform(DevicePlatform("cpu", lambda: True, "gloo")).is_cpu()


def test_device_and_memory_are_the_facts_or_torchs_module(module: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    one = DispatchPlatform(facts(device_name=lambda i: f"Acme {i}", device_capability=lambda i: (9, i)))
    one.set_device("d")
    one.synchronize()
    assert module.calls == [("set_device", "d"), ("synchronize",)]
    monkeypatch.setattr(one.device, "at", lambda index=None: ("acme_chip", index))
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert (one.get_device(1), one.get_local_torch_device()) == (("acme_chip", 1), ("acme_chip", 3))
    assert one.get_device_name(1) == "Acme 1"
    assert one.get_device_uuid(0) != one.get_device_uuid(1)
    assert one.get_device_capability(2) == interface.DeviceCapability(9, 2)
    assert one.has_device_capability((9, 0))
    assert one.has_device_capability(90)
    assert not one.has_device_capability((9, 1))
    assert not DispatchPlatform(facts()).has_device_capability(10)
    assert one.get_device_total_memory() == 100 << 30
    assert one.get_available_gpu_memory() == 32.0
    assert one.get_available_gpu_memory(1, empty_cache=False) == 31.0
    assert one.get_current_memory_usage(SimpleNamespace(index=0)) == 70 << 30


def test_free_memory_of_a_group_is_the_least_in_it(module: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def all_reduce(tensor: torch.Tensor, op: Any, group: Any) -> None:
        asked.append((op, group))
        tensor.fill_(7.0)

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    assert DispatchPlatform(facts()).get_available_gpu_memory(0, distributed=True, cpu_group="g") == 7.0
    assert asked == [(torch.distributed.ReduceOp.MIN, "g")]


def test_distributed_is_the_vendors_backend_and_communicator() -> None:
    one = DispatchPlatform(facts(classes={"sglang.diffusion.communicator": "acme.Communicator"}))
    assert one.get_torch_distributed_backend_str() == "acme_ccl"
    assert one.get_all_to_all_communicator_cls() == "acme.Communicator"
    assert not one.supports_distributed_device_id()
    assert one.get_cpu_architecture() == cpu.CpuPlatform.get_cpu_architecture()


def test_without_a_communicator_of_the_vendor_sglangs_general_one_is_named_and_there() -> None:
    from pkgutil import resolve_name

    for device in ("acme_chip", "cpu"):
        name = DispatchPlatform(DevicePlatform(device, lambda: True, "gloo")).get_all_to_all_communicator_cls()
        assert hasattr(resolve_name(name), "all_to_all_4D")


def test_attention_is_the_vendors_only_where_the_user_asks_for_none() -> None:
    from pkgutil import resolve_name

    enum = interface.AttentionBackendEnum
    one = DispatchPlatform(facts(classes={"sglang.diffusion.attention": "acme.Attention"}))
    assert one.get_attn_backend_cls_str(None, 64, torch.bfloat16) == "acme.Attention"
    sdpa = one.get_attn_backend_cls_str(enum.TORCH_SDPA, 64, torch.bfloat16)
    assert sdpa == DispatchPlatform(facts()).get_attn_backend_cls_str(None, 64, torch.bfloat16)
    assert resolve_name(sdpa).__name__ == "SDPABackend"
    with pytest.raises(ValueError, match="attention backend fa is not known to work on acme_chip; leave it out"):
        one.get_attn_backend_cls_str(enum.FA, 64, torch.bfloat16)


def test_server_arguments_are_the_vendors_function() -> None:
    arguments = SimpleNamespace()
    DispatchPlatform(facts()).apply_server_args_defaults(arguments)
    assert vars(arguments) == {}
    DispatchPlatform(
        facts(classes={"sglang.diffusion.server_args": f"{__name__}.vendors_defaults"})
    ).apply_server_args_defaults(arguments)
    assert vars(arguments) == {"dit_precision": "fp16"}


def vendors_defaults(server_args: Any) -> None:
    server_args.dit_precision = "fp16"


def test_execution_compiler_seed_and_offload(module: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    one = DispatchPlatform(facts(compile_backend="acme"))
    assert one.get_compile_backend("max-autotune") == "acme"
    assert one.get_compile_options(torch.nn.Module()) is None
    monkeypatch.setattr(torch, "get_device_module", lambda *args: module)
    one.seed_everything(5)
    assert torch.initial_seed() == 5
    assert ("manual_seed_all", 5) in module.calls
    assert not one.enable_dit_layerwise_offload_by_default()
    with one.inference_mode():
        assert torch.is_inference_mode_enabled()


def names_in(member: Any) -> tuple[str, ...]:
    """The names that a method's code uses, under its decorators."""
    code = getattr(inspect.unwrap(getattr(member, "__func__", member)), "__code__", None)
    return code.co_names if code is not None else ()


def test_no_method_of_sglangs_interface_is_left_that_raises_by_default() -> None:
    members = vars(interface.Platform).items()
    unanswered = {name for name, member in members if "NotImplementedError" in names_in(member)}
    assert {"get_device", "get_device_name", "get_available_gpu_memory"} <= unanswered
    # Answered by dispatch_key, and one that nobody asks, gone in 0.5.23.
    unanswered -= {"get_torch_library_dispatch_key", "is_async_output_supported"}
    assert {name for name in unanswered if vars(DispatchPlatform).get(name) is None} == set()


@pytest.mark.parametrize("own", [cpu.CpuPlatform, cuda.NonNvmlCudaPlatform], ids=["cpu", "cuda"])
def test_sglangs_own_platform_given_out_by_us_answers_every_question_as_before(
    own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang_fl.diffusion.own_platform import offered

    one, before = offered(own)(), own()
    assert one._enum is interface.PlatformEnum.OOT, "or SGLang refuses it"
    methods = {
        name: getattr(before, name) for name in dir(before) if name.startswith("is_") and name != "is_full_nvlink"
    }
    questions = [name for name, method in methods.items() if not inspect.signature(method).parameters]
    assert {"is_cuda", "is_cpu", "is_cuda_static", "is_blackwell", "is_npu", "is_out_of_tree"} <= set(questions)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *args: (9, 0))
    for name in (
        *questions,
        "get_torch_distributed_backend_str",
        "supports_distributed_device_id",
        "get_all_to_all_communicator_cls",
        "get_torch_library_dispatch_key",
        "get_dispatch_key_name",
        "get_compile_backend",
        "enable_dit_layerwise_offload_by_default",
    ):
        assert getattr(one, name)() == getattr(before, name)(), name
    assert one.get_device(0) == before.get_device(0)
    assert one.is_device_type(before.device_type)


@pytest.mark.parametrize(
    ("device", "ran"), [("cpu", ["SGLang's", "the vendor's"]), ("acme_chip", ["SGLang's"]), (None, ["SGLang's"])]
)
def test_on_sglangs_own_platform_its_set_up_runs_and_then_that_of_the_vendor_of_the_device(
    monkeypatch: pytest.MonkeyPatch, device: str | None, ran: list[str]
) -> None:
    from sglang_fl.diffusion import own_platform

    calls: list[str] = []

    class Own(cpu.CpuPlatform):  # type: ignore[misc]
        def init_backend(self) -> None:
            calls.append("SGLang's")

    given = device and DevicePlatform(device, lambda: True, "gloo", setup=lambda: calls.append("the vendor's"))
    monkeypatch.setattr(own_platform, "device_facts", lambda: given)
    own_platform.offered(Own)().init_backend()
    assert calls == ran


def test_what_sglangs_own_platform_overrides_of_its_enumeration_is_all_that_reads_it() -> None:
    """A question that SGLang comes to answer from it must be answered as before too."""
    from sglang_fl.diffusion.own_platform import _IDENTITY, offered

    readers = {name for name, member in vars(interface.Platform).items() if "_enum" in names_in(member)}
    assert {"is_cuda_static", "is_out_of_tree"} <= readers
    assert readers - set(_IDENTITY) <= set(vars(offered(cpu.CpuPlatform)))
