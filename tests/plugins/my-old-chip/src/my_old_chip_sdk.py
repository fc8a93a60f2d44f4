# SPDX-License-Identifier: Apache-2.0
"""Stands for a chip's SDK: one device, unless $MY_CHIP_DEVICES says otherwise."""

import os


def device_count() -> int:
    return int(os.environ.get("MY_CHIP_DEVICES", "1"))
