# SPDX-License-Identifier: Apache-2.0
"""Every way of choosing an implementation, each seen in a real SGLang process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from engine import CALLS_PER_FORWARD, LAYERS, serve
from sample_wheels import record

pytestmark = pytest.mark.sglang

Plugin = Callable[[str], Path]
OPERATORS = tuple(CALLS_PER_FORWARD)


def test_allowed_vendor_with_code_as_printed_serves_when_vendors_are_preferred(tmp_path: Path, plugin: Plugin) -> None:
    settings = {"SGLANG_FL_PREFER": "vendor", "SGLANG_FL_ALLOW_VENDORS": "my_chip"}
    run = serve(tmp_path, settings, plugins=[plugin("my-chip"), plugin("my-old-chip")])
    assert run.ran() == run.expected(dict.fromkeys(OPERATORS, "vendor.my_chip"))
    assert run.equal == 2
    assert {record["name"]: record["status"] for record in run.vendors()} == {
        "my_chip": "registered",
        "my_old_chip": "denied",
    }
    record("sglang", "my-chip", run.report, tmp_path)


def test_code_on_the_older_root_serves_by_default_beside_a_vendor_that_cannot_be_imported(
    tmp_path: Path, plugin: Plugin
) -> None:
    run = serve(tmp_path, plugins=[plugin("my-old-chip"), plugin("broken-import")])
    assert run.ran() == run.expected(dict.fromkeys(OPERATORS, "vendor.my_old_chip"))
    assert run.equal == 2
    broken, _ = run.vendors()
    assert (broken["name"], broken["status"]) == ("broken_import", "broken")
    assert "undefined symbol" in broken["reason"]
    assert "Traceback" in broken["detail"]
    assert "vendor broken_import (broken-import 1.0) is broken: ImportError: libbroken.so" in run.log


def test_preference_for_the_reference_and_an_implementation_id_for_one_operator(tmp_path: Path, plugin: Plugin) -> None:
    settings = {"SGLANG_FL_PREFER": "reference", "SGLANG_FL_PER_OP": "silu_and_mul=impl:vendor.my_chip"}
    run = serve(tmp_path, settings, plugins=[plugin("my-chip")])
    wanted = {"rms_norm": "reference", "rotary_embedding": "reference", "silu_and_mul": "vendor.my_chip"}
    assert run.ran() == run.expected(wanted)
    assert run.report is not None
    assert all(row["passed_over"] == [] for row in run.report["operators"])


def test_vendor_without_a_device_is_passed_over_with_the_reason(tmp_path: Path, plugin: Plugin) -> None:
    settings = {"SGLANG_FL_PREFER": "vendor", "MY_CHIP_DEVICES": "0"}
    run = serve(tmp_path, settings, plugins=[plugin("my-chip")])
    assert run.ran() == run.expected(dict.fromkeys(OPERATORS, "reference"))
    assert run.report is not None
    for row in run.report["operators"]:
        reasons = {passed["implementation"]: passed["reason"] for passed in row["passed_over"]}
        assert reasons["vendor.my_chip"] == "not available: is_available() returned False"


def test_denied_vendor_is_not_imported_in_the_scheduler(tmp_path: Path, plugin: Plugin) -> None:
    modules = tmp_path / "modules"
    settings = {"SGLANG_FL_DENY_VENDORS": "my_chip", "PROCESS_PROBE_FILE": str(modules)}
    run = serve(tmp_path, settings, plugins=[plugin("my-chip"), plugin("my-old-chip"), plugin("process-probe")])
    assert run.ran() == run.expected(dict.fromkeys(OPERATORS, "vendor.my_old_chip"))
    imported = modules.read_text(encoding="utf-8").splitlines()
    assert "my_old_chip_ops" in imported
    assert not [name for name in imported if name.startswith(("my_chip_ops", "my_chip_sdk"))]
    denied, _ = run.vendors()
    assert (denied["name"], denied["status"], denied["implementations"]) == ("my_chip", "denied", 0)
    assert "not imported" in denied["reason"]


def test_white_list_takes_over_only_what_it_names(tmp_path: Path) -> None:
    run = serve(tmp_path, {"SGLANG_FL_OOT_WHITELIST": "rms_norm"}, counted=["rms_norm"])
    assert run.ran() == run.expected({"rms_norm": "reference"})
    assert run.equal == 2
    reason = "not in the white list (SGLANG_FL_OOT_WHITELIST)"
    assert run.left() == {("RotaryEmbedding", 1, reason), ("SiluAndMul", LAYERS["SiluAndMul"], reason)}


def test_file_of_settings_and_a_black_list_added_to_by_layer_class(tmp_path: Path, plugin: Plugin) -> None:
    file = tmp_path / "fl.yaml"
    file.write_text(
        "prefer: vendor\nper_op:\n  rms_norm: [reference]\noot_blacklist: [silu_and_mul]\n", encoding="utf-8"
    )
    settings = {"SGLANG_FL_CONFIG": str(file), "SGLANG_FL_OOT_BLACKLIST": "+RotaryEmbedding"}
    run = serve(tmp_path, settings, plugins=[plugin("my-chip")], counted=["rms_norm"])
    assert run.ran() == run.expected({"rms_norm": "reference"})
    reason = "in the black list (SGLANG_FL_OOT_BLACKLIST)"
    assert run.left() == {("RotaryEmbedding", 1, reason), ("SiluAndMul", LAYERS["SiluAndMul"], reason)}
    assert run.report is not None
    assert run.report["config"]["prefer"] == {"value": ["vendor"], "from": str(file)}


def test_strict_with_an_unavailable_backend_refuses_to_start_and_says_why(tmp_path: Path) -> None:
    run = serve(tmp_path, {"SGLANG_FL_STRICT": "1", "SGLANG_FL_PREFER": "flagos"})
    assert run.status != 0
    assert run.tokens is None
    assert "strict, and the wanted token 'flagos' has no able implementation" in run.error()
    assert "flag_gems is not installed; it needs an accelerator, and there is none here" in run.error()
    assert "hint: turn strict off" in run.error()
