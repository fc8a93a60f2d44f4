# SPDX-License-Identifier: Apache-2.0
"""``Device``: from the facts where they speak, else from torch's module, else from the machine."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import SimpleNamespace

import pytest
import torch

from fl_dispatch import ConfigError, Device, DevicePlatform, Vendor, platforms
from fl_dispatch.policy import SelectionPolicy


def device(**facts) -> Device:
    return Device(DevicePlatform("acme", lambda: True, "accl", **facts))


@pytest.fixture
def module(monkeypatch):
    found = SimpleNamespace(__name__="torch.acme")
    monkeypatch.setitem(sys.modules, "torch.acme", found)
    return found


CPU = Device(DevicePlatform("cpu", lambda: True, "gloo"))


def test_nothing_is_imported_before_the_first_operation():
    assert device().capability() is None
    with pytest.raises(RuntimeError, match=r"device 'acme': there is no module 'torch\.acme'; the setup"):
        device().synchronize()


def test_another_module_can_be_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "acme_runtime", SimpleNamespace(get_device_name=lambda index: f"chip {index}"))
    assert device(torch_module="acme_runtime").name(3) == "chip 3"


def test_operations_that_the_module_lacks_are_done_without(module):
    one = device()
    one.synchronize()
    one.empty_cache()
    one.seed(1)
    assert one.optional("current_stream") is None
    assert one.current_index() == 0


def test_selecting_a_device_is_no_courtesy(module):
    with pytest.raises(AttributeError, match="set_device"):
        device().select(0)


def test_memory_that_nobody_knows_is_an_error_with_what_to_do(module):
    with pytest.raises(RuntimeError, match=r"torch.acme has no mem_get_info\(\); give memory= in its DevicePlatform"):
        device().memory()
    module.mem_get_info = lambda index: (index, 9)
    assert device().memory(4) == (4, 9)
    assert device(memory=lambda index: (1.0, 2.0)).memory() == (1, 2)


def test_an_index_makes_a_device_but_on_a_cpu(monkeypatch):
    renamed = Device(DevicePlatform("meta", lambda: True, "gloo"))
    assert renamed.at(1) == torch.device("meta", 1)
    assert renamed.at() == torch.device("meta")
    assert CPU.at(5) == torch.device("cpu")


def test_the_memory_of_a_cpu_is_the_machines():
    free, total = CPU.memory()
    assert 0 < free <= total
    CPU.synchronize()
    CPU.empty_cache()


def test_a_uuid_comes_from_the_module_or_tells_devices_of_a_host_apart(module):
    assert device().uuid(0) != device().uuid(1)
    module.get_device_properties = lambda index: SimpleNamespace(uuid="GPU-7")
    assert device().uuid() == "GPU-7"


def test_an_answer_without_a_truth_value_is_the_reason_why_a_device_is_not_usable(monkeypatch):
    facts = DevicePlatform("acme", lambda: torch.ones(2), "accl")
    monkeypatch.setattr(platforms, "installed_vendors", lambda: {"acme": SimpleNamespace(dist=None)})
    monkeypatch.setattr(platforms, "load_vendor", lambda point: Vendor("acme", print, platform=facts))
    (record,) = platforms.device_platforms(SelectionPolicy())
    assert not record.usable
    assert record.platform is facts
    assert record.reason.startswith("RuntimeError: Boolean value of Tensor with more than one value is ambiguous")


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("quantization", "fp8", "a tuple of names, such as ('fp8',), not 'fp8'"),
        ("quantization", ["fp8"], "a tuple of names, such as ('fp8',), not ['fp8']"),
        ("quantization", (8,), "a tuple of names, such as ('fp8',), not (8,)"),
        ("graphs", "no", "True or False, not 'no'"),
        ("fp8", None, "True or False, not None"),
        ("pin_memory", 1, "True or False, not 1"),
        ("piecewise_graphs", [], "True or False, not []"),
        ("triton", "yes", "True or False, not 'yes'"),
        ("classes", ["vllm.worker"], "a mapping from names, not ['vllm.worker']"),
        ("server_args", None, "a mapping from names, not None"),
        ("server_args", {1: 2}, "a mapping from names, not {1: 2}"),
        ("torch_module", None, "a string, not None"),
        ("compile_backend", print, "a string, not <built-in function print>"),
        ("attention_backend", None, "a string, not None"),
        ("native_forward", 7, "a string, not 7"),
        ("profiler_activity", b"CPU", "a string, not b'CPU'"),
    ],
)
def test_a_fact_of_another_type_is_refused_with_its_field_and_value(field, value, wanted):
    with pytest.raises(TypeError) as error:
        device(**{field: value})
    assert str(error.value) == f"DevicePlatform(acme): {field} must be {wanted}"


@pytest.mark.parametrize("name", [dict, "Worker", "a..b", "a.b c", ".b", None])
def test_a_class_is_given_by_its_dotted_name(name):
    with pytest.raises(TypeError) as error:
        device(classes={"vllm.worker": name})
    assert str(error.value) == f"DevicePlatform(acme): classes['vllm.worker'] must be a dotted name, not {name!r}"


def test_a_class_is_found_by_what_it_is_for():
    facts = DevicePlatform("acme", lambda: True, "accl", classes={"sglang.kv_pool": "collections.abc.Mapping"})
    assert facts.named_class("sglang.kv_pool") is Mapping
    assert facts.named_class("sglang.graph_runner") is None


@pytest.mark.parametrize(
    ("dotted", "cause"),
    [
        ("no_such_package.Pool", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("json.Pool", "has no attribute 'Pool'"),
    ],
)
def test_a_class_that_cannot_be_imported_is_named_with_its_purpose_and_the_cause(dotted, cause):
    facts = DevicePlatform("acme", lambda: True, "accl", classes={"sglang.kv_pool": dotted})
    with pytest.raises(ConfigError) as error:
        facts.named_class("sglang.kv_pool")
    assert f"DevicePlatform(acme): classes['sglang.kv_pool'] names {dotted!r}, which cannot be imported: " in str(
        error.value
    )
    assert cause in str(error.value)
