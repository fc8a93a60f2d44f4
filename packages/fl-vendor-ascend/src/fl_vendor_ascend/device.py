# SPDX-License-Identifier: Apache-2.0
"""The device: its names, and whether this machine has one. Neither torch nor torch_npu is needed to say so."""

from __future__ import annotations

import glob

from fl_dispatch import DevicePlatform

#: The vendor's name and that of its entry point.
NAME = "ascend"
#: torch's name of the device.
DEVICE = "npu"
#: One file a device, made by the driver.
DEVICE_FILES = "/dev/davinci[0-9]*"


def present() -> bool | str:
    """True where the driver has made a device file, else why not. Nothing is opened."""
    return bool(glob.glob(DEVICE_FILES)) or f"needs an Ascend NPU, there is no {DEVICE_FILES}"


PLATFORM = DevicePlatform(device_type=DEVICE, present=present, distributed_backend="hccl", graphs=True)
