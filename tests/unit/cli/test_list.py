# SPDX-License-Identifier: Apache-2.0
"""``fl-dispatch list``."""

from __future__ import annotations

import sys

from fl_dispatch import BackendImplKind, OpImpl
from fl_dispatch.cli.listing import describe, limits


def vendors(done) -> dict:
    return {record["name"]: record for record in done.json()["vendors"]}


def implementation(done, operator: str, impl_id: str) -> dict:
    (entry,) = (entry for entry in done.json()["operators"] if entry["operator"] == operator)
    (found,) = (impl for impl in entry["implementations"] if impl["impl_id"] == impl_id)
    return found


def test_every_operator_has_its_reference(run) -> None:
    done = run("list", "--json")
    assert done.code == 0
    for entry in done.json()["operators"]:
        assert implementation(done, entry["operator"], "reference")["available"] is True


def test_an_implementation_is_shown_with_all_it_declares(run, install_vendor) -> None:
    install_vendor("good")
    found = implementation(run("list", "--json"), "rms_norm", "vendor.good")
    assert found == {
        "impl_id": "vendor.good",
        "kind": "vendor",
        "vendor": "good",
        "priority": 100,
        "available": True,
        "reason": None,
        "registered_by": "fl-good 1.0",
        "declares": {
            "dtypes": ["bfloat16", "float16"],
            "devices": None,
            "min_arch": None,
            "supports": False,
            "supports_layer": False,
            "honours": {},
            "mutates": ["residual"],
            "traceable": False,
            "capture_safe": False,
        },
    }
    text = " ".join(run("list").out.split())
    assert "vendor.good vendor good, priority 100, from fl-good 1.0 available takes bfloat16, float16;" in text
    assert "writes to residual; not traceable; not declared capture-safe" in text


def test_limits_in_words() -> None:
    impl = OpImpl(
        "rms_norm",
        "vendor.x",
        BackendImplKind.VENDOR,
        print,
        vendor="x",
        devices={"cuda", "musa"},
        min_arch=(9, 0),
        supports=lambda obj, x, residual=None: True,
        supports_layer=lambda obj: True,
        honours={"cast_x_before_out_mul": {False}},
        mutates=(),
        traceable=True,
        capture_safe=True,
    )
    assert limits(describe(impl, {})["declares"]) == (
        "on cuda or musa; architecture 9.0 or newer; checks each call; checks each layer; "
        "honours cast_x_before_out_mul only as False; writes to no argument; traceable; capture-safe"
    )


def test_what_cannot_be_used_is_listed_with_the_reason(run, install_vendor) -> None:
    install_vendor("partial")
    found = implementation(run("list", "--json"), "silu_and_mul", "vendor.partial")
    assert (found["available"], found["reason"]) == (False, "its SDK sees no device")
    text = " ".join(run("list").out.split())
    assert "not available: its SDK sees no device may write to any argument;" in text


def test_vendors_are_listed_with_their_status(run, install_vendor, monkeypatch) -> None:
    for name in ("good", "partial", "broken"):
        install_vendor(name)
    install_vendor("denied", "raise SystemExit('a denied vendor was imported')")
    monkeypatch.setenv("FL_DISPATCH_DENY_VENDORS", "denied")
    found = vendors(run("list", "--json"))
    states = {name: found[name]["status"] for name in ("good", "partial", "broken", "denied")}
    assert states == {"good": "registered", "partial": "partial", "broken": "broken", "denied": "denied"}
    assert found["broken"]["reason"] == "ImportError: libbroken.so.1: cannot open shared object file"
    assert "parameter 'residual' is missing" in found["partial"]["reason"]
    assert "fl_denied" not in sys.modules
    text = " ".join(run("list").out.split())
    assert "denied denied fl-denied 1.0 0 vendor 'denied' is denied (deny_vendors); not imported" in text
    assert "broken broken fl-broken 1.0 0 ImportError: libbroken.so.1: cannot open shared object file" in text


def test_standard_output_is_json_alone_even_when_a_vendor_prints(spawn, install_vendor) -> None:
    install_vendor("good")
    install_vendor("broken")
    done = spawn("list", "--json")
    assert done.json()["vendors"]
    assert done.err == "a vendor that talks\n"
