# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import platform
from types import SimpleNamespace

import pytest
import torch

from fl_dispatch import Backend, facts
from fl_dispatch.facts import (
    architecture,
    default_device_type,
    device_name,
    facts_for,
    tracing_or_capturing,
    unavailable_reason,
)


class Acme(Backend):
    name = "acme"
    answer = False
    words = None

    def is_available(self):
        return self.answer

    def unavailable_reason(self):
        return self.words


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (True, None),
        (2, None),
        ("no driver", "no driver"),
        (False, "not available: <lambda>() returned False"),
        (None, "not available: <lambda>() returned None"),
        ("", "not available: <lambda>() returned ''"),
    ],
)
def test_answers_of_a_probe(answer, reason):
    assert unavailable_reason(lambda: answer) == reason


def test_a_backends_own_reason_is_told():
    backend = Acme()
    assert unavailable_reason(backend.is_available) == "not available: is_available() returned False"
    backend.words = "libacme.so: undefined symbol"
    assert unavailable_reason(backend.is_available) == "libacme.so: undefined symbol"


@pytest.mark.parametrize("error", [OSError("no libacme.so"), SystemExit("no licence")])
def test_a_probe_that_raises_is_a_reason(error):
    def probe():
        raise error

    assert unavailable_reason(probe) == f"its availability probe raised {type(error).__name__}: {error}"


def test_this_process_knows_its_device():
    assert default_device_type() == (
        torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"
    )
    assert facts_for(None).device_type == default_device_type()


def test_a_cpu_has_no_architecture():
    assert architecture("cpu") is None


def test_eager_code_is_neither_tracing_nor_capturing():
    assert tracing_or_capturing() is False


@pytest.mark.parametrize(("initialized", "capturing"), [(True, True), (True, False), (False, True)])
def test_a_capture_on_any_kind_of_device_is_noticed(monkeypatch, initialized, capturing):
    module = SimpleNamespace(is_initialized=lambda: initialized, is_current_stream_capturing=lambda: capturing)
    monkeypatch.setattr(torch, "acme", module, raising=False)
    monkeypatch.setattr(facts, "default_device_type", lambda: "acme")
    assert tracing_or_capturing() is (initialized and capturing)
    monkeypatch.setattr(torch, "acme", SimpleNamespace(), raising=False)
    assert tracing_or_capturing() is False


def test_a_cpu_is_told_by_its_model_and_a_device_that_is_not_there_is_an_error(monkeypatch, tmp_path):
    table = tmp_path / "cpuinfo"
    table.write_text("processor\t: 0\nmodel name\t: Acme 9000\n\nprocessor\t: 1\nmodel name\t: Acme 9000\n")
    opened = open
    monkeypatch.setattr("builtins.open", lambda path, *rest, **named: opened(table, *rest, **named))
    assert device_name("cpu") == "Acme 9000"
    table.write_text("processor\t: 0\n")
    assert device_name("cpu") == (platform.processor() or platform.machine())
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="no_such_chip"):
        device_name("no_such_chip")
