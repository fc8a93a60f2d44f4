# SPDX-License-Identifier: Apache-2.0
"""What the SGLang adapter contributes to ``fl-dispatch doctor``."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints, PackageNotFoundError
from pathlib import Path

import pytest

from sglang_fl import doctor, versions


class Distribution:
    def __init__(self, name: str, *points: tuple[str, str], value: str = "x:y") -> None:
        self.name = name
        # An entry point keeps its distribution in an attribute that only the library sets.
        self.entry_points = EntryPoints(EntryPoint(point, value, group)._for(self) for group, point in points)


OURS = Distribution("sglang-fl", (doctor.PLUGINS, "sglang_fl"), (doctor.PLATFORMS, "sglang_fl"), value=doctor.LOADER)
CARRIER = Distribution("my-ops", (doctor.PLUGINS, "my_ops"), value=doctor.LOADER)
KUNLUN = Distribution("sglang-kunlun", (doctor.PLUGINS, "kunlun"), (doctor.PLATFORMS, "kunlun"))
OTHER = Distribution("other", (doctor.PLUGINS, "other"))


@pytest.fixture
def check(monkeypatch):
    """``check("0.5.23", {"SGLANG_PLUGINS": "x"}, installed=[...])``: subject to finding."""

    def check(version: str = "0.5.23", environ=None, installed=(OURS,)) -> dict:
        def distribution(name: str) -> Distribution:
            found = [each for each in installed if each.name == name]
            if not found:
                raise PackageNotFoundError(name)
            return found[0]

        def entry_points(group: str) -> EntryPoints:
            return EntryPoints(p for each in installed for p in each.entry_points if p.group == group)

        monkeypatch.setattr(versions, "installed_version", lambda: version)
        monkeypatch.setattr(doctor, "distribution", distribution)
        monkeypatch.setattr(doctor, "entry_points", entry_points)
        for name, value in (environ or {}).items():
            monkeypatch.setenv(name, value)
        return {finding.subject: finding for finding in doctor.check()}

    return check


def test_a_good_installation_has_only_good_findings(check) -> None:
    found = check()
    assert {name: finding.level for name, finding in found.items()} == {"sglang": "ok"}
    assert found["sglang"].text == "SGLang 0.5.23, a tested version"


@pytest.mark.parametrize(
    ("version", "level", "text"),
    [
        ("0.5.11", "ok", "SGLang 0.5.11, a tested version"),
        ("0.5.23+cpu", "ok", "SGLang 0.5.23+cpu, a tested version"),
        ("0.5.10", "fault", "SGLang 0.5.10 has no plug-in system and loads nothing of sglang-fl"),
        ("0.4.9.post2", "fault", "has no plug-in system"),
        ("0.5.24", "note", "not a version sglang-fl was tested with (SGLang 0.5.11 to 0.5.23)"),
        ("0.5.23.post1", "note", "not a version sglang-fl was tested with"),
        ("not installed", "note", "SGLang is not installed here"),
    ],
)
def test_the_version(version, level, text, check) -> None:
    finding = check(version)["sglang"]
    assert finding.level == level
    assert text in finding.text


def test_the_tested_versions_are_every_patch_release_in_a_row() -> None:
    assert list(versions.TESTED_VERSIONS) == [f"0.5.{patch}" for patch in range(11, 24)]
    assert all(versions.verdict(version) is None for version in versions.TESTED_VERSIONS)


def test_another_platform_selected_switches_all_hooks_off(check) -> None:
    finding = check(environ={"SGLANG_PLATFORM": "kunlun"}, installed=(OURS, KUNLUN))["SGLANG_PLATFORM"]
    assert finding.level == "fault"
    assert finding.text.endswith("SGLang then skips all our hooks without a word")
    assert finding.hint == (
        f"to keep it and have our operators, load us from a distribution without a platform: {doctor.GUIDE}; "
        "else unset SGLANG_PLATFORM, or set SGLANG_PLATFORM=sglang_fl"
    )


def test_another_platform_selected_is_good_where_a_distribution_without_a_platform_loads_us(check) -> None:
    found = check(environ={"SGLANG_PLATFORM": "kunlun"}, installed=(OURS, KUNLUN, CARRIER))
    assert found["SGLANG_PLATFORM"].level == "ok"
    assert found["SGLANG_PLATFORM"].text == "selects kunlun, with our operators: my-ops loads our hooks"


def test_a_list_of_plugins_has_to_name_the_one_that_loads_us(check) -> None:
    environ = {"SGLANG_PLATFORM": "kunlun", "SGLANG_PLUGINS": "sglang_fl"}
    finding = check(environ=environ, installed=(OURS, KUNLUN, CARRIER))["SGLANG_PLUGINS"]
    assert (finding.level, finding.hint) == ("fault", "SGLANG_PLUGINS=sglang_fl,my_ops, or unset it")
    environ["SGLANG_PLUGINS"] = "my_ops"
    assert "SGLANG_PLUGINS" not in check(environ=environ, installed=(OURS, KUNLUN, CARRIER))


def test_the_guide_that_the_hint_names_is_there() -> None:
    page, _, section = doctor.GUIDE.partition(", ")
    text = (Path(__file__).parents[3] / page).read_text(encoding="utf-8")
    assert f"\n## {section}\n" in text


def test_a_platform_that_does_not_exist_stops_sglang(check) -> None:
    finding = check(environ={"SGLANG_PLATFORM": "cuda"})["SGLANG_PLATFORM"]
    assert finding.level == "fault"
    assert finding.text == "SGLang stops: no installed platform has the name 'cuda' (installed: sglang_fl)"


def test_our_platform_selected_is_good(check) -> None:
    assert check(environ={"SGLANG_PLATFORM": "sglang_fl"}, installed=(OURS, KUNLUN))["SGLANG_PLATFORM"].level == "ok"


def test_several_platforms_without_a_selection_are_a_note(check) -> None:
    finding = check(installed=(OURS, KUNLUN))["SGLANG_PLATFORM"]
    assert finding.level == "note"
    assert "(kunlun, sglang_fl)" in finding.text


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("kunlun,other", "SGLANG_PLUGINS=kunlun,other,sglang_fl, or unset it"),
        (" ", "SGLANG_PLUGINS=sglang_fl, or unset it"),
        ("other", "SGLANG_PLUGINS=other,sglang_fl, or unset it"),
    ],
)
def test_a_list_of_plugins_without_us_is_a_fault(value, hint, check) -> None:
    finding = check(environ={"SGLANG_PLUGINS": value}, installed=(OURS, KUNLUN, OTHER))["SGLANG_PLUGINS"]
    assert (finding.level, finding.hint) == ("fault", hint)


def test_a_name_in_the_list_of_plugins_that_nobody_has_is_a_note(check) -> None:
    finding = check(environ={"SGLANG_PLUGINS": "sglang_fl,kunlnu"}, installed=(OURS, KUNLUN))["SGLANG_PLUGINS"]
    assert finding.level == "note"
    assert finding.text == "no installed plug-in has the name kunlnu; SGLang passes over it without a word"
    assert finding.hint == "the names are: kunlun, sglang_fl"


@pytest.mark.parametrize("value", ["", "sglang_fl", "kunlun, sglang_fl"])
def test_a_list_of_plugins_with_us_is_good(value, check) -> None:
    assert "SGLANG_PLUGINS" not in check(environ={"SGLANG_PLUGINS": value}, installed=(OURS, KUNLUN))


@pytest.mark.parametrize(("version", "level"), [("0.5.17", "note"), ("0.5.18", "fault"), ("0.5.23", "fault")])
def test_a_forced_backend_goes_round_the_dispatcher(version, level, check) -> None:
    found = check(version, {"SGLANG_FORCE_FUSED_OP_BACKEND": "triton"})
    assert found["SGLANG_FORCE_FUSED_OP_BACKEND"].level == level


@pytest.mark.parametrize(
    ("installed", "text"),
    [
        ((), "sglang_fl can be imported but no distribution sglang-fl is installed"),
        (
            (Distribution("sglang-fl", (doctor.PLATFORMS, "sglang_fl")),),
            "broken install: entry point 'sglang_fl' is missing in sglang.srt.plugins",
        ),
        (
            (OURS, Distribution("sglang-plugin", (doctor.PLUGINS, "sglang_fl"))),
            "sglang-plugin also registers 'sglang_fl' in sglang.srt.plugins",
        ),
    ],
)
def test_a_broken_installation(installed, text, check) -> None:
    finding = check(installed=installed)["sglang-fl"]
    assert finding.level == "fault"
    assert text in finding.text


def test_variables_do_not_matter_without_sglang(check) -> None:
    assert "SGLANG_PLUGINS" not in check("not installed", {"SGLANG_PLUGINS": "x"})


def test_neither_sglang_nor_torch_is_imported() -> None:
    code = (
        "import sys; from sglang_fl.doctor import check, config_arguments; list(check()); config_arguments(); "
        "print([name for name in ('sglang', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_lists_take_layer_classes() -> None:
    assert doctor.config_arguments()["operator_aliases"]["RMSNorm"] == ("rms_norm",)
