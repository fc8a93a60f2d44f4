# SPDX-License-Identifier: Apache-2.0
"""What the doctor says about the replacement of ATen operators."""

from __future__ import annotations

import pytest

from fl_dispatch.doctor import diagnose


@pytest.fixture
def finding(gems, monkeypatch):
    """``finding(FLAGOS_ATEN="1")``: the one finding about ATen operators, or None."""

    def look(**given):
        environ = {f"FL_DISPATCH_{key}": value for key, value in given.items()}
        found = [one for one in diagnose("FL_DISPATCH_", environ) if one.subject == "ATen operators"]
        assert len(found) < 2
        return found[0] if found else None

    return look


def test_nothing_where_nobody_asked(finding):
    assert finding() is None


def test_how_many_a_worker_would_replace(finding):
    one = finding(FLAGOS_ATEN="1", FLAGOS_BLACKLIST="mul")
    assert (one.level, one.text) == ("ok", "workers replace 4 of the 5 FlagGems has")
    assert "mul.Tensor (mul)" in one.detail


def test_an_unknown_name_is_a_fault(finding):
    one = finding(FLAGOS_ATEN="1", FLAGOS_WHITELIST="ngg")
    assert one.level == "fault"
    assert "FlagGems replaces no ATen operator 'ngg' here; did you mean 'neg'?" in one.text


def test_a_device_that_is_missing_is_a_note(finding, monkeypatch):
    monkeypatch.setenv("FAKE_GEMS_FAULT", "No device")
    one = finding(FLAGOS_ATEN="1")
    assert one.level == "note"
    assert one.text.endswith("they stay PyTorch's own: flag_gems does not import here: RuntimeError: No device")
