# SPDX-License-Identifier: Apache-2.0
"""The device: its names, and whether this machine has one. Neither torch nor torch_npu is needed to say so."""

from __future__ import annotations

import glob
import importlib

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


def setup() -> None:
    """Import torch_npu, which brings ``torch.npu``; raises what that raises."""
    importlib.import_module("torch_npu")


#: In both frameworks as their own platforms for this device have it. Graphs need the framework's runner for the device.
PLATFORM = DevicePlatform(
    device_type=DEVICE,
    present=present,
    distributed_backend="hccl",
    setup=setup,
    # torch_npu's get_device_capability() answers what a variable says, not what the chip is.
    device_capability=None,
    pin_memory=True,
    graphs=True,
    triton=True,
    attention_backend="ascend",
    native_forward="npu",
    profiler_activity="PrivateUse1",
    classes={
        "sglang.graph_runner": ("sglang.srt.hardware_backend.npu.graph_runner.npu_graph_runner.NPUGraphRunner"),
    },
)
