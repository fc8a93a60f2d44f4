# SPDX-License-Identifier: Apache-2.0
"""After the scheduler is built, writes the names of all modules its process has imported to $PROCESS_PROBE_FILE."""

import os
import sys
from pathlib import Path

from sglang.srt.plugins.hook_registry import HookRegistry, HookType


def register():
    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.__init__", write_modules, HookType.AFTER)


def write_modules(result, *args, **kwargs):
    Path(os.environ["PROCESS_PROBE_FILE"]).write_text("\n".join(sorted(sys.modules)), encoding="utf-8")
