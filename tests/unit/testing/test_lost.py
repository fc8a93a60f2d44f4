# SPDX-License-Identifier: Apache-2.0
"""Which devices count as lost after a check that failed, with stand-ins for torch's device modules."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fl_dispatch.testing import lost


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """``good`` answers; ``bad`` does not, as after an illegal memory access."""

    def raises() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    modules = {"good": SimpleNamespace(synchronize=lambda: None), "bad": SimpleNamespace(synchronize=raises)}
    monkeypatch.setattr(torch, "get_device_module", modules.__getitem__)
    monkeypatch.setattr(lost, "_lost", {})


@pytest.mark.usefixtures("devices")
def test_a_device_that_answers_after_a_failure_is_not_lost_and_no_other_one_is() -> None:
    lost.after_failure("bad", "first")
    for device in ("good", "cpu"):
        lost.after_failure(device, "first")
        assert lost.reason(device) is None
    assert lost.reason("bad") == "bad cannot be used in this process any more since first failed"


@pytest.mark.usefixtures("devices")
def test_the_check_that_lost_it_stays_named() -> None:
    lost.after_failure("bad", "first")
    lost.after_failure("bad", "second")
    assert "since first failed" in str(lost.reason("bad"))
