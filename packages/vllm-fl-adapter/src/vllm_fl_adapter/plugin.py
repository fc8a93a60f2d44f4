# SPDX-License-Identifier: Apache-2.0
"""What happens when vLLM loads us in a process: read the settings, replace the layer classes, hook the worker."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fl_dispatch import Config, SeamError, default_manager, load_config
from vllm_fl_adapter.bridges import OPERATOR_ALIASES, Bridge
from vllm_fl_adapter.layers import LayerBinder
from vllm_fl_adapter.versions import installed_version, too_old, verdict

if TYPE_CHECKING:
    from vllm_fl_adapter.ir_provider import IrProvider

#: Below vLLM's own logger, whose handlers and format it shares.
logger = logging.getLogger("vllm.fl_adapter")

PREFIX = "VLLM_FL_"


@dataclass
class Installed:
    """What is in effect in this process."""

    config: Config
    binder: LayerBinder
    ir_provider: IrProvider


_installed: Installed | None = None


def installed() -> Installed | None:
    """What ``install`` put in effect in this process, or None when vLLM has not called it."""
    return _installed


def install() -> None:
    """Read the settings and take vLLM's layers over; does nothing when called again.

    Raises:
        FLDispatchError: a setting is wrong, or this vLLM is not one we know our way in.
    """
    global _installed
    if _installed is None:
        _installed = _install()


def _install() -> Installed:
    version = installed_version()
    warning = verdict(version)
    if warning is not None:
        if too_old(version):
            raise SeamError(warning)
        logger.warning("%s", warning)
    config = load_config(PREFIX, operator_aliases=OPERATOR_ALIASES)
    manager = default_manager()
    manager.configure(policy=config.policy)
    if not config.is_off:
        _ = manager.registry  # filling it checks the names that the policy has, before a model is loaded
    manager.watch(calls=config.report is not None, numbers=config.compare)

    from vllm_fl_adapter.ir_provider import IrProvider
    from vllm_fl_adapter.replacements import register_all
    from vllm_fl_adapter.worker import hook_workers

    binder = LayerBinder(manager, config)

    def leave(bridge: Bridge) -> str | None:
        """A class of which no operator is wanted is not replaced: off means vLLM untouched."""
        reasons = [config.takes_over(operator) for operator in bridge.operators]
        return reasons[0] if None not in reasons else None

    binder.not_replaced = register_all(binder, leave)
    hook_workers()
    ir_provider = IrProvider(manager)
    absent = ir_provider.register()
    if absent is not None:
        logger.debug("%s", absent)
    logger.info("vllm-fl-adapter: vLLM %s, order %s", version, " > ".join(config.policy.prefer))
    return Installed(config, binder, ir_provider)
