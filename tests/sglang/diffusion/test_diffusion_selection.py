# SPDX-License-Identifier: Apache-2.0
"""Which platform SGLang Diffusion takes: its rules for platform plug-ins, against real SGLang."""

from __future__ import annotations

import logging
import sys

import pytest

pytest.importorskip("diffusion_plugins", exc_type=ImportError)

from diffusion_case import OVERRIDE, Install, accelerator, other_platform, resolved, vendor
from sglang.multimodal_gen.runtime import platforms
from sglang.multimodal_gen.runtime.platforms import cpu

import sglang_fl.diffusion.backend as backend
from fl_dispatch import FLDispatchError
from sglang_fl.diffusion import activate
from sglang_fl.diffusion.choice import ENTRY_POINT, FACTS_PLATFORM, OWN_PLATFORM
from sglang_fl.diffusion.platform import DispatchPlatform

pytestmark = pytest.mark.usefixtures("fresh")


def test_without_a_variable_and_a_vendors_device_sglangs_own_platform_stays() -> None:
    assert activate() is None
    assert type(resolved()) is cpu.CpuPlatform


def test_a_device_that_sglang_does_not_know_is_selected_automatically(install: Install) -> None:
    vendor(install, "acme", "acme_chip")
    found = resolved()
    assert type(found) is DispatchPlatform
    assert (found.device_name, found.device_type) == ("acme_chip", "acme_chip")
    assert platforms.get_selected_platform_dist() == "sglang-fl"


def test_a_vendor_whose_device_is_not_here_or_that_is_denied_changes_nothing(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor(install, "acme", "acme_chip", "no /dev/acme")
    assert activate() is None
    vendor(install, "zeta", "zeta_chip")
    assert activate() == FACTS_PLATFORM
    monkeypatch.setenv("SGLANG_FL_DENY_VENDORS", "zeta")
    assert activate() is None


def test_a_device_beside_another_accelerator_needs_to_be_asked_for(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor(install, "acme", "acme_chip")
    accelerator(monkeypatch, "cuda")
    assert activate() is None
    monkeypatch.setenv(OVERRIDE, ENTRY_POINT)
    assert activate() == FACTS_PLATFORM


def test_explicit_selection_takes_sglangs_own_platform_where_it_has_one(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor(install, "acme", "npu")
    assert activate() is None
    monkeypatch.setenv(OVERRIDE, ENTRY_POINT)
    assert activate() == OWN_PLATFORM
    found = resolved()
    assert isinstance(found, cpu.CpuPlatform)
    assert type(found) is not cpu.CpuPlatform


@pytest.mark.parametrize("name", ["cpu", "cuda", "rocm", "mps", "npu", "musa"])
def test_explicit_selection_of_a_built_in_platform_asks_nothing_of_us(
    install: Install, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    vendor(install, "acme", "acme_chip")
    monkeypatch.setenv(OVERRIDE, name)
    assert platforms.resolve_current_platform_cls_qualname() == platforms._BUILTIN_PLATFORM_QUALNAMES[name]


def test_explicit_selection_imports_the_selected_plug_in_alone(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_platform(install, "raise RuntimeError('imported')")
    monkeypatch.setenv(OVERRIDE, ENTRY_POINT)
    assert type(resolved()).__name__ == "OwnPlatform"
    assert "other_chip" not in sys.modules


def test_an_unknown_name_is_an_error_of_sglang_that_lists_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OVERRIDE, "nobody")
    with pytest.raises(ValueError, match=r"Unsupported SGLANG_DIFFUSION_PLATFORM_OVERRIDE='nobody'.*'sglang_fl'"):
        resolved()


def test_two_platforms_that_want_to_run_stop_sglang_until_one_is_named(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor(install, "acme", "acme_chip")
    other_platform(install)
    with pytest.raises(RuntimeError, match="Multiple platform plugins activated"):
        resolved()
    monkeypatch.setenv(OVERRIDE, "other_chip")
    assert resolved().device_name == "other"


def test_of_several_vendors_with_a_device_the_first_by_name_is_taken_and_that_is_said(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    vendor(install, "zeta", "zeta_chip")
    vendor(install, "acme", "acme_chip")
    with caplog.at_level(logging.WARNING, "sglang_fl"):
        assert resolved().device_type == "acme_chip"
    assert "several vendors have a device here (acme, zeta); taking acme" in caplog.text


def test_why_a_vendors_device_is_not_taken_is_told_where_we_are_asked_for(
    install: Install, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    vendor(install, "acme", "acme_chip", "no /dev/acme")
    monkeypatch.setenv(OVERRIDE, "sglang_fl")
    with caplog.at_level(logging.INFO, "sglang_fl"):
        assert not isinstance(resolved(), DispatchPlatform)
    assert "takes SGLang's own platform, as no vendor's device is here\n  acme (" in caplog.text
    assert "no /dev/acme" in caplog.text


def test_an_activation_that_raises_aborts_the_start_and_nothing_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_FL_STRICT", "perhaps")
    with pytest.raises(FLDispatchError, match="SGLANG_FL_STRICT"):
        resolved()
    assert platforms._current_platform is None


def test_activation_is_safe_to_import_and_initialises_nothing(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor(install, "acme", "acme_chip")
    before = {name for name in sys.modules if name.startswith("sglang.multimodal_gen.runtime")}
    assert activate() == FACTS_PLATFORM
    assert platforms._current_platform is None
    assert backend.started() is None
    assert "torch.acme_chip" not in sys.modules
    assert {name for name in sys.modules if name.startswith("sglang.multimodal_gen.runtime")} == before


def test_the_names_of_the_entry_points_are_unique_and_none_of_sglangs() -> None:
    entries = platforms._discover_platform_plugin_entries()
    platforms._validate_platform_entries(entries)
    assert [entry.name for entry in entries if entry.dist.name == "sglang-fl"] == [ENTRY_POINT]
