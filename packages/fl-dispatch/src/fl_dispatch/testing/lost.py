# SPDX-License-Identifier: Apache-2.0
"""Devices that a kernel's fault ended the use of: every later call of the process fails there, whatever it is."""

from __future__ import annotations

import torch

#: Device type to the check after which it did not answer any more.
_lost: dict[str, str] = {}


def answers(device: str) -> bool:
    """Whether waiting for the device works."""
    if device == "cpu":
        return True
    try:
        torch.get_device_module(device).synchronize()
    except Exception:  # noqa: BLE001  (whatever it says, the check that failed has said it already)
        return False
    return True


def after_failure(device: str, check: str) -> None:
    """Note whether a device is lost after a check that failed."""
    if not answers(device):
        _lost.setdefault(device, check)


def reason(device: str) -> str | None:
    """Why no check can be run on it any more; None when one can."""
    check = _lost.get(device)
    return None if check is None else f"{device} cannot be used in this process any more since {check} failed"
