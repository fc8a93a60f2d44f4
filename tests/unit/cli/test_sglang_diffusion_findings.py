# SPDX-License-Identifier: Apache-2.0
"""What the SGLang adapter contributes to ``fl-dispatch doctor`` about SGLang Diffusion."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, EntryPoints
from types import SimpleNamespace

import pytest

from fl_dispatch import ConfigError, DevicePlatform, Finding
from sglang_fl import versions
from sglang_fl.diffusion import doctor

Check = Callable[..., dict[str, Finding]]
OURS = (("sglang-fl", doctor.PLATFORMS, "sglang_fl"), ("sglang-fl", doctor.PLUGINS, "sglang_fl"))
CARRIER = ("my-ops", doctor.PLUGINS, "my_ops")
OTHER = ("other", doctor.PLATFORMS, "other")


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Check:
    """``check({"SGLANG_PLUGINS": "x"}, installed, device="acme")``: subject to finding."""

    def check(
        environ: Mapping[str, str] | None = None,
        installed: tuple[tuple[str, str, str], ...] = OURS,
        device: str | None = None,
        version: str = "0.5.23",
    ) -> dict[str, Finding]:
        def entry_points(group: str) -> EntryPoints:
            points = [
                (dist, EntryPoint(name, doctor.HOOKS, where)) for dist, where, name in installed if where == group
            ]
            return EntryPoints(point._for(SimpleNamespace(name=dist)) for dist, point in points)

        facts = DevicePlatform(device, lambda: True, "gloo") if device is not None else None
        monkeypatch.setattr(versions, "installed_version", lambda: version)
        monkeypatch.setattr(doctor, "entry_points", entry_points)
        monkeypatch.setattr(doctor, "device_facts", lambda: facts)
        for name in (doctor.VARIABLE, "SGLANG_PLUGINS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in (environ or {}).items():
            monkeypatch.setenv(name, value)
        return {finding.subject: finding for finding in doctor.check()}

    return check


def test_nothing_is_said_without_sglang_and_a_version_without_plug_ins_is_named(check: Check) -> None:
    assert check(version="not installed") == {}
    found = check(version="0.5.20")["sglang diffusion"]
    assert (found.level, found.text) == ("note", "takes no plug-ins in SGLang 0.5.20")


@pytest.mark.parametrize(
    ("environ", "installed", "device", "subject", "level", "text"),
    [
        ({}, OURS, None, "sglang diffusion", "note", "stays on its own platform, where it runs none of our operators"),
        ({}, OURS, "npu", "sglang diffusion", "note", "stays on its own platform"),
        ({}, OURS, "acme", "sglang diffusion", "ok", "takes our platform by itself, for the acme of a vendor"),
        ({}, (*OURS, OTHER), "acme", "sglang diffusion", "note", "several platforms are installed (other, sglang_fl)"),
        ({}, (*OURS, CARRIER), None, "sglang diffusion", "ok", "where the hooks of my-ops run our operators"),
        ({doctor.VARIABLE: "sglang_fl"}, OURS, None, doctor.VARIABLE, "ok", "selects our platform"),
        ({doctor.VARIABLE: "cuda"}, OURS, None, doctor.VARIABLE, "note", "'cuda', which runs none of our operators"),
        (
            {doctor.VARIABLE: "cuda"},
            (*OURS, CARRIER),
            None,
            doctor.VARIABLE,
            "ok",
            "the hooks of my-ops run our operators",
        ),
        ({doctor.VARIABLE: "other"}, (*OURS, OTHER), None, doctor.VARIABLE, "note", "'other', which runs none"),
        (
            {doctor.VARIABLE: "nobody"},
            OURS,
            None,
            doctor.VARIABLE,
            "fault",
            "no installed plug-in, so SGLang Diffusion stops",
        ),
        (
            {doctor.VARIABLE: "cuda", "SGLANG_PLUGINS": "theirs"},
            (*OURS, CARRIER),
            None,
            doctor.VARIABLE,
            "note",
            "runs none of our operators",
        ),
        ({"SGLANG_PLUGINS": "theirs"}, OURS, "acme", "SGLANG_PLUGINS", "note", "leaves out 'sglang_fl': no check"),
        (
            {doctor.VARIABLE: "sglang_fl", "SGLANG_PLUGINS": "theirs"},
            OURS,
            "acme",
            "SGLANG_PLUGINS",
            "note",
            "leaves out 'sglang_fl': no check",
        ),
        *(
            (
                {doctor.VARIABLE: "sglang_fl", "SGLANG_PLUGINS": "theirs"},
                OURS,
                device,
                "SGLANG_PLUGINS",
                "fault",
                "leaves out 'sglang_fl', whose hooks bring our operators here: workers stop",
            )
            for device in (None, "npu")
        ),
    ],
)
def test_where_our_operators_would_run(
    check: Check,
    environ: dict[str, str],
    installed: tuple[tuple[str, str, str], ...],
    device: str | None,
    subject: str,
    level: str,
    text: str,
) -> None:
    found = check(environ, installed, device)[subject]
    assert found.level == level
    assert text in found.text
    assert level == "ok" or found.hint


def test_the_hooks_of_a_distribution_with_a_platform_are_skipped_and_do_not_count(check: Check) -> None:
    found = check({doctor.VARIABLE: "cuda"}, (*OURS, CARRIER, ("my-ops", doctor.PLATFORMS, "mine")))[doctor.VARIABLE]
    assert found.level == "note"


def test_settings_that_abort_the_start_are_a_fault_once(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    check()

    def wrong() -> None:
        raise ConfigError("SGLANG_FL_STRICT: not a flag")

    monkeypatch.setattr(doctor, "device_facts", wrong)
    (found,) = doctor.check()
    assert (found.level, found.text) == ("note", "does not start with these settings either")
