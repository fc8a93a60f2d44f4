# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own operators replaced by those of a FlagGems for the CPU."""

from __future__ import annotations

import sys

import pytest
import torch

from fl_dispatch import ConfigError, runtime
from fl_dispatch.aten import replace_aten


def test_by_default_nothing_is_replaced_and_flag_gems_not_imported(gems, settings):
    found = replace_aten(settings())
    assert found.as_dict() == {"state": "off", "reason": "flagos_aten is off, its default"}
    assert "flag_gems" not in sys.modules


def test_switched_on_it_serves_pytorchs_operators(gems, settings):
    found = replace_aten(settings(FLAGOS_ATEN="1"))
    assert found.state == "on"
    assert dict(found.replaced)["mul.Tensor"] == "flag_gems.ops.mul"
    assert torch.equal(torch.ones(3).neg(), torch.full((3,), -1.0))
    assert gems().calls["neg"] == 1


@pytest.mark.parametrize("name", ["mul.Tensor", "mul"])
def test_the_white_list_takes_names_of_aten_and_of_flag_gems(gems, settings, name):
    found = replace_aten(settings(FLAGOS_ATEN="1", FLAGOS_WHITELIST=f"{name},relu"))
    assert sorted(found.replaced) == ["mul.Tensor", "relu"]
    assert sorted(found.left_out) == ["index_select", "neg", "square"]
    torch.ones(3).neg()
    assert gems().calls["neg"] == 0


def test_the_black_list_wins(gems, settings):
    found = replace_aten(settings(FLAGOS_ATEN="1", FLAGOS_WHITELIST="neg,relu", FLAGOS_BLACKLIST="relu"))
    assert list(found.replaced) == ["neg"]


@pytest.mark.parametrize("which", ["WHITELIST", "BLACKLIST"])
def test_an_unknown_name_is_an_error_and_nothing_is_registered(gems, settings, which):
    config = settings(FLAGOS_ATEN="1", **{f"FLAGOS_{which}": "neg,sqare"})
    message = f"SGLANG_FL_FLAGOS_{which}: FlagGems replaces no ATen operator 'sqare' here; did you mean 'square'?"
    with pytest.raises(ConfigError) as caught:
        replace_aten(config)
    assert str(caught.value) == message
    torch.ones(3).neg()
    assert gems().calls["neg"] == 0


def test_an_operator_of_layers_is_told_where_it_belongs(gems, settings):
    with pytest.raises(ConfigError, match="operator of layers, which oot_whitelist and oot_blacklist name"):
        replace_aten(settings(FLAGOS_ATEN="1", FLAGOS_WHITELIST="silu_and_mul"))


def test_lists_that_leave_nothing_are_an_error(gems, settings):
    with pytest.raises(ConfigError, match="leave no ATen operator to replace"):
        replace_aten(settings(FLAGOS_ATEN="1", FLAGOS_WHITELIST="neg", FLAGOS_BLACKLIST="neg"))


def test_use_flaggems_0_means_not_even_imported(gems, settings, monkeypatch):
    monkeypatch.setenv("USE_FLAGGEMS", "0")
    found = replace_aten(settings(FLAGOS_ATEN="1"))
    assert (found.state, found.reason) == ("unavailable", "switched off by USE_FLAGGEMS=0")
    assert "flag_gems" not in sys.modules


def test_without_a_device_the_reason_is_kept_and_pytorch_goes_on(gems, settings, monkeypatch, caplog):
    monkeypatch.setenv("FAKE_GEMS_FAULT", "No device were detected on your machine !\n check")
    found = replace_aten(settings(FLAGOS_ATEN="1"))
    reason = "flag_gems does not import here: RuntimeError: No device were detected on your machine !"
    assert (found.state, found.reason) == ("unavailable", reason)
    assert f"ATen's operators stay PyTorch's own: {reason}" in caplog.text
    assert torch.equal(torch.ones(3).neg(), torch.full((3,), -1.0))


def test_without_a_device_strict_refuses(gems, settings, monkeypatch):
    monkeypatch.setenv("FAKE_GEMS_FAULT", "No device")
    with pytest.raises(ConfigError, match="SGLANG_FL_FLAGOS_ATEN: strict, and ATen's operators cannot be replaced: "):
        replace_aten(settings(FLAGOS_ATEN="1", STRICT="1"))


@pytest.mark.parametrize(
    ("extra", "key", "reason"),
    [
        ("1", "no_such_operator", "this PyTorch has no such operator"),
        ("relu", "relu", "RuntimeError: could not parse dispatch key"),
    ],
)
def test_one_that_cannot_be_registered_leaves_the_others(gems, settings, monkeypatch, extra, key, reason):
    monkeypatch.setenv("FAKE_GEMS_EXTRA", extra)
    found = replace_aten(settings(FLAGOS_ATEN="1", FLAGOS_WHITELIST=f"neg,square,{'relu' if extra == 'relu' else key}"))
    assert found.refused[key].startswith(reason)
    assert sorted(found.replaced) == ["neg", "square"]


def test_it_happens_once_in_a_process(gems, settings, monkeypatch):
    monkeypatch.setattr(runtime, "_aten", None)
    config = settings(FLAGOS_ATEN="1")
    assert runtime.replace_aten(config) is runtime.replace_aten(config)
    torch.ones(3).neg()
    assert gems().calls["neg"] == 1


def test_a_list_without_a_word_on_whether_it_counts_is_an_error(settings):
    message = "SGLANG_FL_FLAGOS_BLACKLIST: flagos_blacklist has no effect while ATen's operators are not replaced"
    with pytest.raises(ConfigError, match=message):
        settings(FLAGOS_BLACKLIST="mul")
    assert settings(FLAGOS_BLACKLIST="mul", FLAGOS_ATEN="0").flagos_blacklist == {"mul"}
