# SPDX-License-Identifier: Apache-2.0
"""Registering our hooks beside those of other plug-ins."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fl_dispatch import SeamError

if TYPE_CHECKING:
    from sglang.srt.plugins.hook_registry import HookType


def register(module: str, attribute: str, hook: Callable[..., Any], kind: HookType) -> str:
    """Register a hook where SGLang will still apply it, and return the target it is registered on.

    SGLang applies the hooks of a target once and passes over what is registered on it later. It takes ``module.attribute`` and
    ``module:attribute`` for two targets: where another plug-in already had its hooks applied to one, ours goes around them
    through the other.

    Raises:
        SeamError: the hooks of both were applied.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry

    for target in (f"{module}.{attribute}", f"{module}:{attribute}"):
        if target not in HookRegistry._patched:
            HookRegistry.register(target, hook, kind)
            return target
    raise SeamError(
        f"SGLang already applied the hooks of other plug-ins on {module}.{attribute}, under both names that it knows it by, so "
        "ours cannot be added; let those plug-ins register their hooks and leave HookRegistry.apply_hooks() to SGLang"
    )
