# SPDX-License-Identifier: Apache-2.0
"""``fl-dispatch config``."""

from __future__ import annotations

import pytest

from fl_dispatch.config import SETTINGS


def test_each_setting_with_its_origin(run, tmp_path, monkeypatch) -> None:
    file = tmp_path / "fl.yaml"
    file.write_text("strict: true\noot_blacklist: [rms_norm]\n", encoding="utf-8")
    monkeypatch.setenv("SGLANG_FL_CONFIG", str(file))
    monkeypatch.setenv("SGLANG_FL_PREFER", "vendor, reference")
    monkeypatch.setenv("SGLANG_FL_OOT_BLACKLIST", "+silu_and_mul")
    monkeypatch.setenv("USE_FLAGGEMS", "0")
    done = run("config", "--prefix", "SGLANG_FL_", "--json")
    assert done.code == 0
    settings = done.json()["settings"]
    assert settings["prefer"] == {"value": ["vendor", "reference"], "from": "SGLANG_FL_PREFER"}
    assert settings["strict"] == {"value": True, "from": str(file)}
    assert settings["oot_blacklist"] == {"value": ["rms_norm", "silu_and_mul"], "from": "SGLANG_FL_OOT_BLACKLIST"}
    assert settings["deny_vendors"] == {"value": [], "from": "built-in"}
    assert settings["use_flaggems"] == {"value": False, "from": "USE_FLAGGEMS"}
    assert settings["config"] == {"value": str(file), "from": "SGLANG_FL_CONFIG"}


def test_text_shows_values_as_one_writes_them_into_variables(run, monkeypatch) -> None:
    monkeypatch.setenv("FL_DISPATCH_PER_OP", "rms_norm=reference|vendor; silu_and_mul=flagos")
    lines = [line.split(maxsplit=2) for line in run("config").out.splitlines()]
    assert ["FL_DISPATCH_PER_OP", "FL_DISPATCH_PER_OP", "rms_norm=reference|vendor;silu_and_mul=flagos"] in lines
    assert ["FL_DISPATCH_PREFER", "built-in", "flagos,vendor,reference"] in lines
    assert ["FL_DISPATCH_STRICT", "built-in", "0"] in lines
    assert ["USE_FLAGGEMS", "built-in", "1"] in lines


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("FL_DISPATCH_CONFIG", "missing.yaml", "cannot read the configuration file 'missing.yaml'"),
        ("FL_DISPATCH_STRICT", "maybe", "FL_DISPATCH_STRICT: 'maybe' is neither on nor off"),
        ("FL_DISPATCH_OOT_WHITELIST", "rmsnorm", "unknown operator 'rmsnorm'; did you mean 'rms_norm'?"),
        ("FL_DISPATCH_DENY_VENDORS", "nobody", "no installed vendor is named 'nobody'"),
    ],
)
def test_a_wrong_value_is_exit_code_2(name, value, message, run, monkeypatch) -> None:
    monkeypatch.setenv(name, value)
    done = run("config")
    assert (done.code, done.out) == (2, "")
    assert message in " ".join(done.err.split())


def test_the_reference_has_every_setting(run) -> None:
    rows = run("config", "--reference", "--prefix", "VLLM_FL_", "--json").json()
    expected = [f"VLLM_FL_{setting.key.upper()}" for setting in SETTINGS]
    assert [row["variable"] for row in rows] == [*expected, "USE_FLAGGEMS"]
    text = run("config", "--reference", "--prefix", "VLLM_FL_").out
    for row in rows:
        assert f"| `{row['variable']}` |" in text
        assert row["meaning"] in text


def test_an_adapter_says_which_further_names_its_lists_take(run, install, monkeypatch) -> None:
    source = 'def arguments():\n    return {"operator_aliases": {"RMSNorm": ("rms_norm",)}}'
    install("an-adapter", source, {"fl_dispatch.config": {"OTHER_FL_": "an_adapter:arguments"}})
    monkeypatch.setenv("OTHER_FL_OOT_WHITELIST", "RMSNorm")
    done = run("config", "--prefix", "OTHER_FL_", "--json")
    assert done.json()["settings"]["oot_whitelist"]["value"] == ["rms_norm"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise RuntimeError('half installed')", "cannot say how OTHER_FL_* is read: RuntimeError: half installed"),
        ("arguments = lambda: {'aliases': {}}", "gives unknown arguments aliases; known: operator_aliases, platform"),
    ],
)
def test_an_adapter_that_cannot_say_it_is_named(source, message, run, install) -> None:
    install("an-adapter", source, {"fl_dispatch.config": {"OTHER_FL_": "an_adapter:arguments"}})
    done = run("config", "--prefix", "OTHER_FL_")
    assert done.code == 2
    assert message in " ".join(done.err.split())
