# SPDX-License-Identifier: Apache-2.0
"""What happens when SGLang loads us in a process: read the settings, find the seam, register the hooks."""

from __future__ import annotations

import logging
import sys
import traceback
from dataclasses import dataclass

from fl_dispatch import Config, FLDispatchError, default_manager, load_config
from sglang_fl.bridges import OPERATOR_ALIASES
from sglang_fl.graphs import METHOD, around_enter_torch_compile
from sglang_fl.hooks import register
from sglang_fl.layers import LayerBinder
from sglang_fl.seam import Seam, find_seam
from sglang_fl.versions import installed_version, verdict

logger = logging.getLogger("sglang_fl")

PREFIX = "SGLANG_FL_"

#: Loaded by the time we are in a worker process; a launcher need not load it for our sake.
_WORKER_MODULE = "sglang.srt.managers.scheduler"


@dataclass
class Installed:
    """What is in effect in this process."""

    config: Config
    seam: Seam
    binder: LayerBinder


_installed: Installed | None = None


def installed() -> Installed | None:
    """What ``install`` put in effect in this process, or None when SGLang has not called it."""
    return _installed


def install() -> None:
    """Read the settings and hook SGLang; any fault ends the process with a readable message."""
    global _installed
    if _installed is not None:
        return
    try:
        _installed = _install()
    except FLDispatchError as error:
        raise SystemExit(f"sglang-fl refuses to start: {error}") from error
    except Exception:  # noqa: BLE001  (SGLang would log it and serve without us: it has to end the process)
        raise SystemExit(f"sglang-fl failed to load and refuses to start:\n{traceback.format_exc()}") from None


def _install() -> Installed:
    from sglang.srt.plugins.hook_registry import HookType

    config = load_config(PREFIX, operator_aliases=OPERATOR_ALIASES)
    default_manager().configure(policy=config.policy)
    default_manager().watch(calls=config.report is not None, numbers=config.compare)
    warning = verdict(installed_version())
    if warning is not None:
        logger.warning("%s", warning)
    seam = find_seam()
    binder = LayerBinder(default_manager(), config, seam)
    register(seam.module, f"{seam.owner}.{seam.method}", binder.around_seam, HookType.AROUND)
    if seam.has(METHOD):
        register(seam.module, f"{seam.owner}.{METHOD}", around_enter_torch_compile, HookType.AROUND)
    from sglang_fl.launcher import TARGET, before_check

    register(*TARGET, before_check, HookType.BEFORE)
    if _WORKER_MODULE in sys.modules:
        from sglang_fl.worker import around_scheduler_init

        register(_WORKER_MODULE, "Scheduler.__init__", around_scheduler_init, HookType.AROUND)
    logger.info(
        "sglang-fl: SGLang %s, seam %s, order %s", installed_version(), seam.target, " > ".join(config.policy.prefer)
    )
    return Installed(config, seam, binder)
