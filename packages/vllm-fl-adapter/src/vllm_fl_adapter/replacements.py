# SPDX-License-Identifier: Apache-2.0
"""Our subclasses of vLLM's layer classes, put where vLLM looks for replacements: by the exact class name, with ``register_oot``.

A replacement inherits ``__init__`` unchanged and has vLLM's name. Whatever method vLLM would pick for the platform, it
finds one and the same forward, which binds the layer on its first call (the worker does that once the model is loaded).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from fl_dispatch import SeamError
from vllm_fl_adapter.bridges import BRIDGES, Bridge, find_bridge
from vllm_fl_adapter.versions import installed_version, tested_range

#: Importing these defines all subclasses that vLLM's own models take.
_DEFINE_SUBCLASSES = ("vllm.model_executor.layers.rotary_embedding",)


class Replacement:
    """Mixed into each replacement, in front of vLLM's class.

    Attributes:
        fl_vllm_class: the class it replaces.
        fl_bridge: how that maps to an operator.
        fl_binder: binds its instances; set by the plug-in.
    """

    fl_vllm_class: ClassVar[type]
    fl_bridge: ClassVar[Bridge]
    fl_binder: ClassVar[Any]

    def dispatch_forward(self, *args: Any, **kwargs: Any) -> Any:
        """vLLM calls this while it constructs the layer, which has no field yet."""
        ours = type(self)
        # What vLLM would run without us, asked now: its configuration is only there while a model is built.
        self.__class__ = self.fl_vllm_class
        native = self.dispatch_forward(*args, **kwargs)
        self.__class__ = ours
        self.fl_binder.constructed(self, native)
        return super().dispatch_forward(*args, **kwargs)  # type: ignore[misc]  # of vLLM's class

    def fl_forward(self, *args: Any, **kwargs: Any) -> Any:
        """The forward of every platform; only runs until the layer is bound, and where it is called by name."""
        return self.fl_binder.settle(self)(*args, **kwargs)

    forward_oot = forward_cpu = forward_cuda = forward_xpu = forward_hip = fl_forward

    @classmethod
    def enabled(cls) -> bool:
        """On unless ``custom_ops`` names it with a minus: "none", vLLM's default with Inductor, is not meant for us."""
        from vllm.config import get_cached_compilation_config

        super().enabled()  # type: ignore[misc]  # of vLLM's class; raises where the name is both enabled and disabled
        return f"-{cls.name}" not in get_cached_compilation_config().custom_ops  # type: ignore[attr-defined]


def runs_fl_forward(layer: Any) -> bool:
    """Whether vLLM picked our forward for a replacement, and nobody pinned another one since."""
    return getattr(layer._forward_method, "__func__", None) is Replacement.fl_forward


def register_all(binder: Any, leave: Callable[[Bridge], str | None]) -> dict[str, str]:
    """Register a replacement of every class that maps to an operator; safe to repeat.

    Args:
        binder: binds the instances.
        leave: the reason why a bridge's classes are not to be replaced at all, or None.

    Returns:
        class name to reason, for the classes that are left alone.

    Raises:
        SeamError: this vLLM has no such layers, or no replacements of layers.
    """
    registry = _registry()
    left: dict[str, str] = {}
    for bridge in BRIDGES:
        for klass in _family(bridge):
            reason = leave(bridge)
            present = registry.get(klass.__name__)
            if reason is None and present is not None and not issubclass(present, Replacement):
                reason = f"another plug-in replaced it by {present.__module__}.{present.__qualname__}"
            if reason is not None:
                left[klass.__name__] = reason
            elif present is None:
                _register(klass, bridge, binder)
    return left


def _registry() -> dict[str, type]:
    try:
        from vllm.model_executor.custom_op import op_registry_oot
    except ImportError as error:
        raise SeamError(
            f"vLLM {installed_version()} has no table of replaced layers ({error}); vllm-fl-adapter was tested with "
            f"{tested_range()}; install one of these, or a newer vllm-fl-adapter"
        ) from error
    table: dict[str, type] = op_registry_oot
    return table


def _family(bridge: Bridge) -> Iterator[type]:
    """The bridge's class, and every subclass whose forward is the same."""
    try:
        for module in (bridge.module, *_DEFINE_SUBCLASSES):
            importlib.import_module(module)
        root: type = getattr(importlib.import_module(bridge.module), bridge.layer)
    except (ImportError, AttributeError) as error:
        raise SeamError(
            f"vLLM {installed_version()} has no {bridge.module}.{bridge.layer} ({error}); vllm-fl-adapter was tested with "
            f"{tested_range()}; install one of these, or a newer vllm-fl-adapter"
        ) from error
    todo, seen = [root], set()
    while todo:
        klass = todo.pop()
        if klass in seen or issubclass(klass, Replacement):
            continue
        seen.add(klass)
        todo += klass.__subclasses__()
        if find_bridge(klass)[0] is bridge:
            yield klass


def _register(klass: type, bridge: Bridge, binder: Any) -> None:
    name = klass.name  # type: ignore[attr-defined]  # what custom_ops calls it
    body = {
        "__doc__": f"{klass.__name__} of vLLM, its forward through fl-dispatch.",
        "__module__": __name__,
        "fl_vllm_class": klass,
        "fl_bridge": bridge,
        "fl_binder": binder,
        **bridge.attributes,
    }
    replacement = type(klass.__name__, (Replacement, klass), body)
    klass.register_oot(replacement)  # type: ignore[attr-defined]
    # register_oot renames it to its class name, and "+rms_norm" in custom_ops would name nothing any more.
    replacement.name = name  # type: ignore[attr-defined]
