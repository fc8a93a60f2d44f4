# SPDX-License-Identifier: Apache-2.0
"""``fl-dispatch explain`` and ``config`` on orders by tokens and on ``native``."""

from __future__ import annotations

import json

import pytest

from fl_dispatch.cli import main

FILE = "per_op: {rms_norm: {16: native, more: [reference]}}"


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """``command("explain", ...)``: the exit code and what it printed, with the file above."""
    (tmp_path / "fl.yaml").write_text(FILE)
    for prefix in ("FL_DISPATCH_", "SGLANG_FL_"):
        monkeypatch.setenv(f"{prefix}CONFIG", str(tmp_path / "fl.yaml"))

    def call(*words):
        code = main([*words])
        return code, capsys.readouterr().out

    return call


def test_a_worker_would_leave_up_to_16_tokens_to_its_framework(command):
    code, out = command("explain", "rms_norm", "--device", "cpu", "--prefix", "SGLANG_FL_")
    few, more = out.split("more tokens:")
    assert code == 0
    assert "up to 16 tokens:\noperator 'rms_norm'" in few
    assert "-> native                   first able in the order, by token native" in few
    assert "-> reference                first able in the order, by token reference" in more


def test_a_program_without_a_framework_has_no_such_method(command):
    _, out = command("explain", "rms_norm", "--device", "cpu", "--prefix", "FL_DISPATCH_")
    assert "x native" in out
    assert "only a layer of a framework has a method of its own" in " ".join(out.split())


def test_json_has_a_selection_for_each_bucket(command):
    _, out = command("explain", "rms_norm", "--device", "cpu", "--prefix", "SGLANG_FL_", "--json")
    found = json.loads(out)
    assert [(part["up_to"], part["chosen"]) for part in found["by_tokens"]] == [(16, "native"), (None, "reference")]
    assert found["chosen"] == "reference"


def test_other_operators_have_no_buckets(command):
    _, out = command("explain", "silu_and_mul", "--device", "cpu", "--prefix", "SGLANG_FL_")
    assert "tokens:" not in out


def test_the_settings_show_them(command):
    _, out = command("config", "--prefix", "SGLANG_FL_")
    assert "rms_norm=16: native, more: reference" in " ".join(out.split())
