# SPDX-License-Identifier: Apache-2.0
"""Registering our hooks beside those of other plug-ins."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fl_dispatch import SeamError

if TYPE_CHECKING:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType


def register(
    module: str, attribute: str, hook: Callable[..., Any], kind: HookType, registry: type[HookRegistry] | None = None
) -> str:
    """Register a hook where SGLang will still apply it, and return the target it is registered on.

    SGLang applies the hooks of a target once and passes over what is registered on it later. It takes ``module.attribute`` and
    ``module:attribute`` for two targets: where another plug-in already had its hooks applied to one, ours goes around them
    through the other.

    Args:
        module: of the target.
        attribute: its dotted name in there.
        hook: ours.
        kind: how it is called.
        registry: SGLang's registry of hooks; that of the language models when None.

    Raises:
        SeamError: the hooks of both were applied.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry

    registry = registry or HookRegistry
    for target in (f"{module}.{attribute}", f"{module}:{attribute}"):
        if target not in registry._patched:
            registry.register(target, hook, kind)
            return target
    raise SeamError(
        f"SGLang already applied the hooks of other plug-ins on {module}.{attribute}, under both names that it knows it by, so "
        "ours cannot be added; let those plug-ins register their hooks and leave HookRegistry.apply_hooks() to SGLang"
    )
