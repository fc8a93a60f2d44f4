# SPDX-License-Identifier: Apache-2.0
"""What fl-dispatch sees of FlagGems, for the CPU: ``enable``, kernels of its own, and a fused operator that uses ATen."""

import os

from flag_gems import ops

if "FAKE_GEMS_FAULT" in os.environ:
    raise RuntimeError(os.environ["FAKE_GEMS_FAULT"])

if "FAKE_GEMS_IMPORTS" in os.environ:
    with open(os.environ["FAKE_GEMS_IMPORTS"], "a", encoding="utf-8") as log:
        log.write(f"{os.getpid()}\n")

__version__ = "0.0"

KERNELS = [("neg", ops.neg), ("square", ops.square), ("mul.Tensor", ops.mul), ("relu", ops.relu)]
KERNELS += [("index_select", ops.index_select)]
KERNELS += [("no_such_operator", ops.relu)] if "FAKE_GEMS_EXTRA" in os.environ else []


def enable(lib, unused=None, registrar=None, record=False, once=False, path=None):
    assert unused == []
    assert not record
    for key, fn in KERNELS:
        lib.impl(key, fn, "NoSuchDevice" if os.environ.get("FAKE_GEMS_EXTRA") == key else "CPU")


def fused(x):
    return x.neg()
