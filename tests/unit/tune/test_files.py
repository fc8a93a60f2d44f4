# SPDX-License-Identifier: Apache-2.0
"""The policy file is one that the settings accept; the picture shows every implementation."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
import yaml

from fl_dispatch import load_config
from fl_dispatch.doctor import diagnose
from fl_dispatch.facts import default_device_type, device_name
from fl_dispatch.tune.chart import svg
from fl_dispatch.tune.measure import Figure
from fl_dispatch.tune.policy_file import content, token
from fl_dispatch.types import BackendImplKind, OpImpl

FIGURES = [
    Figure("rms_norm", "rms_norm", "bfloat16", tokens, impl_id, 0.5 * tokens, 10.0, time * tokens)
    for tokens in (1, 16, 256)
    for impl_id, time in (("flagos", 1.0), ("vendor.acme", 2.0))
] + [Figure("rms_norm", "rms_norm", "bfloat16", 1, "vendor.bolt", 0.5, failed="it's not able")]
TOKENS = {("rms_norm", impl_id): f"impl:{impl_id}" for impl_id in ("vendor.acme", "vendor.bolt")} | {
    ("rms_norm", "flagos"): "flagos",
    ("silu_and_mul", "flagos"): "flagos",
}


@pytest.fixture
def written(tmp_path):
    def write(**tuned):
        path = tmp_path / "tuned.yaml"
        orders = {"rms_norm": {16: ["flagos", "vendor.acme"], "more": ["vendor.acme"]}, "silu_and_mul": ["flagos"]}
        orders["gelu_and_mul"] = []
        path.write_text(content(orders, TOKENS, {"figures": FIGURES, **tuned}))
        return path

    return write


def test_the_settings_accept_it(written):
    config = load_config("X_", {"X_CONFIG": str(written(date="2026-01-01"))}, vendors=())
    assert config.policy.by_tokens == {
        "rms_norm": ((16, ("flagos", "impl:vendor.acme")), (None, ("impl:vendor.acme",)))
    }
    assert config.policy.per_op == {"silu_and_mul": ("flagos",)}
    assert config.tuned["date"] == "2026-01-01"


def test_it_holds_the_figures_and_what_was_not_able(written):
    tuned = yaml.safe_load(written().read_text())["tuned"]
    assert len(tuned["figures"]) == 6
    assert tuned["figures"][2] == {
        "workload": "rms_norm",
        "op_name": "rms_norm",
        "dtype": "bfloat16",
        "tokens": 16,
        "impl_id": "flagos",
        "floor_us": 8.0,
        "host_us": 10.0,
        "device_us": 16.0,
    }
    assert tuned["not_able"] == {"rms_norm, bfloat16, vendor.bolt": "it's not able"}


@pytest.mark.parametrize(
    ("kind", "impl_id", "wanted"),
    [
        ("DEFAULT", "flagos", "flagos"),
        ("REFERENCE", "reference", "reference"),
        ("DEFAULT", "flagos.2", "impl:flagos.2"),
    ],
)
def test_tokens_stand_for_one_implementation(kind, impl_id, wanted):
    assert token(OpImpl("rms_norm", impl_id, BackendImplKind[kind], print)) == wanted


def test_the_picture_has_a_line_for_each_implementation_and_the_floor():
    root = ElementTree.fromstring(svg(FIGURES, "bfloat16", "graph", "title <here>"))
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert words[0] == "title <here>"
    assert {"rms_norm, microseconds a call", "flagos", "vendor.acme", "memory floor", "1", "16", "256"} <= set(words)
    lines = [p for p in root.iter("{http://www.w3.org/2000/svg}path") if p.get("fill") == "none"]
    assert len(lines) == 3
    assert len(list(root.iter("{http://www.w3.org/2000/svg}circle"))) == 6


def test_the_picture_says_where_nothing_was_measured():
    assert "rms_norm: nothing could be measured" in svg(FIGURES[-1:], "bfloat16", "graph", "title")


@pytest.mark.parametrize(
    ("versions", "level", "text"),
    [
        ({}, "ok", "measured 2026-01-01 on this device with these versions"),
        ({"torch": "1.0"}, "note", "under other conditions: torch 1.0 then, "),
        ({"no-such-kernels": "2"}, "note", "no-such-kernels 2 then, none now"),
    ],
)
def test_the_doctor_says_whether_it_was_measured_here(written, versions, level, text):
    path = written(date="2026-01-01", device=device_name(default_device_type()), versions=versions)
    path.write_text(path.read_text().replace("impl:vendor.acme", "vendor"))  # which is not installed
    (finding,) = [f for f in diagnose("FL_DISPATCH_", {"FL_DISPATCH_CONFIG": str(path)}) if f.subject == "tuned policy"]
    assert finding.level == level
    assert text in finding.text
