# SPDX-License-Identifier: Apache-2.0
"""``init_backend`` of both our platforms: what a worker needs before anything of its model is imported.

SGLang calls it once in each worker process and aborts the start when it raises, without another try.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fl_dispatch import Config, default_manager, load_config
from sglang_fl.bridges import OPERATOR_ALIASES
from sglang_fl.diffusion.choice import ENTRY_POINT, VARIABLE, allowed
from sglang_fl.diffusion.forwards import CUSTOM_OP, DISPATCH, Forwards
from sglang_fl.versions import installed_version, verdict

logger = logging.getLogger("sglang_fl")

PREFIX = "SGLANG_FL_"


class BackendError(RuntimeError):
    """Our platform's set-up failed: names the step, the cause and what to do."""


@dataclass
class Started:
    """What is in effect in this worker."""

    config: Config
    forwards: Forwards
    device_type: str
    seam: str
    registered: list[str]
    #: Why every layer stays with SGLang in this process, once that is known; None: they do not.
    mode: str | None = None
    #: The setting by which SGLang captures device graphs; None: it captures none.
    captured_by: str | None = None


_started: Started | None = None


def started() -> Started | None:
    """What ``initialise`` or ``without_platform`` put in effect in this process; None: neither was called."""
    return _started


def initialise(platform: Any, setup: Callable[[], None] | None, *, registers: bool = True) -> None:
    """Read the settings, set the device up, register our forwards.

    Args:
        platform: tells the device and the key that forwards are registered under.
        setup: of the vendor's facts.
        registers: False where SGLang asks for no registered forward, and our hooks bring the operators.

    Raises:
        BackendError: one of these failed; the cause is its ``__cause__``.
    """
    global _started
    device = platform.device_type
    reading = ("reading the settings", "`fl-dispatch doctor --prefix SGLANG_FL_` checks them")
    _step(device, *reading, _settings)
    if setup is not None:
        hint = "the vendor package's SDK or driver is not usable here; SGLANG_FL_DENY_VENDORS leaves the vendor out"
        _step(device, f"setup() of the vendor's DevicePlatform ({_name(setup)})", hint, setup)
    # Imports the vendors' operators, which may need what setup() does.
    config = _step(device, *reading, lambda: _configure(platform))
    if registers:
        hint = f"use a tested version of SGLang, or another platform with {VARIABLE}"
        _started = _step(device, "registering our forwards", hint, lambda: _register(platform, config))
    else:
        _step(device, "loading our hooks", f"add {ENTRY_POINT} to SGLANG_PLUGINS, or unset it", _require_hooks)
        _started = _start(platform, config)
    logger.info(
        "sglang-fl: SGLang %s diffusion on %s, %s, order %s",
        installed_version(),
        device,
        _started.seam,
        " > ".join(_started.config.policy.prefer),
    )
    if _left_out():
        logger.warning(
            "sglang-fl: SGLANG_PLUGINS=%s leaves our hooks out: the operators are in effect, but nothing checks that, layers "
            "decide on their first call, and language-model layers in text encoders stay with SGLang; add %s to it",
            os.environ["SGLANG_PLUGINS"],
            ENTRY_POINT,
        )


def _left_out() -> bool:
    return not allowed(ENTRY_POINT, os.environ.get("SGLANG_PLUGINS", ""))


def _require_hooks() -> None:
    if _left_out():
        raise RuntimeError(
            f"SGLANG_PLUGINS={os.environ['SGLANG_PLUGINS']} leaves them out, so no operator would be dispatched"
        )


def _settings() -> Config:
    return load_config(PREFIX, operator_aliases=OPERATOR_ALIASES)


def _configure(platform: Any) -> Config:
    config = _settings()
    manager = default_manager()
    manager.configure(policy=config.policy, device_type=platform.device_type)
    if not config.is_off:
        _ = manager.registry  # filling it checks the names that the policy has, before a model is loaded
    return config


def _register(platform: Any, config: Config) -> Started:
    key = platform.get_dispatch_key_name()
    here = _start(platform, config, key)
    here.seam = f"{CUSTOM_OP}.register_oot_forward(platform_key={key!r})"
    here.registered = here.forwards.register()
    return here


def without_platform(platform: Any) -> Started:
    """On a platform that is not ours: the settings and the binder, for a hook on the place where SGLang decides.

    Raises:
        FLDispatchError: the settings are wrong.
    """
    global _started
    _started = _start(platform, _configure(platform))
    return _started


def _start(platform: Any, config: Config, key: str = "native") -> Started:
    manager = default_manager()
    manager.watch(calls=config.report is not None, numbers=config.compare)
    warning = verdict(installed_version())
    if warning is not None:
        logger.warning("%s", warning)
    forwards = Forwards(manager, config, key, _mode, _called)
    return Started(config, forwards, platform.device_type, ".".join(DISPATCH), [])


def _mode() -> str | None:
    if os.environ.get("SGLANG_ENABLE_DETERMINISTIC_INFERENCE", "").lower() in ("1", "true", "yes", "on"):
        return "SGLang's deterministic mode fixes the kernels"
    return _started.mode if _started is not None else None


def _called() -> None:
    """A layer was called that no hook of ours settled: hooks are left out (SGLANG_PLUGINS), or it was made later."""
    from sglang_fl.diffusion.worker import publish_once

    if _started is not None:
        publish_once(_started)


def _step(device: str, what: str, hint: str, action: Callable[[], Any]) -> Any:
    try:
        return action()
    except Exception as error:
        raise BackendError(
            f"sglang-fl: the diffusion platform for {device} cannot start, {what} failed: {type(error).__name__}: {error}; {hint}"
        ) from error


def _name(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', function)}"
