# SPDX-License-Identifier: Apache-2.0
"""``Forwards``: what we register with SGLang Diffusion, and for each layer our bridge or SGLang's own method with the reason.

``CustomOp`` asks for a layer's method in ``__init__``, when the layer has no field yet. So what it gets decides later: once the
model is there (``settle_layer``), or on the first call of a layer that is made after that. On a vendor's platform it finds what
we registered, by the exact class; on SGLang's own ones our hook answers.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from fl_dispatch import Config, OpManager, SeamError
from sglang_fl.bridges.bridge import Bridge
from sglang_fl.diffusion.bridges import BRIDGES, LEFT
from sglang_fl.layers import Forward, bind_layer
from sglang_fl.versions import installed_version

#: Where ``CustomOp`` decides which method a layer runs.
DISPATCH = ("sglang.multimodal_gen.runtime.layers.custom_op", "CustomOp.dispatch_forward")
CUSTOM_OP = f"{DISPATCH[0]}.CustomOp"


class Forwards:
    """Registers and binds.

    Args:
        manager: decides which implementation runs.
        config: white and black list.
        key: SGLang's name of the platform's forwards (``get_dispatch_key_name``).
        mode: a mode of this process in which every layer stays with SGLang, as a reason; None: there is none.
        called: told when a layer decides on its first call, which nobody had settled.
    """

    def __init__(
        self,
        manager: OpManager,
        config: Config,
        key: str,
        mode: Callable[[], str | None] = lambda: None,
        called: Callable[[], None] = lambda: None,
    ) -> None:
        self._manager = manager
        self._config = config
        self._key = key
        self._mode = mode
        self._called = called
        self._registered: set[type] = set()
        #: SGLang's own decision, where we hook it.
        self._decide: Callable[[Any], Forward] | None = None
        self._left: weakref.WeakKeyDictionary[Any, tuple[str, str, str]] = weakref.WeakKeyDictionary()

    def register(self) -> list[str]:
        """Register a forward for every bridged class and those subclasses that compute the same; returns their names.

        Raises:
            SeamError: this SGLang lacks one of the classes, or the registration.
        """
        custom_op = _find(CUSTOM_OP)
        for bridge in BRIDGES.values():
            for klass in _family(_find(bridge.layer)):
                custom_op.register_oot_forward(klass, fn=self._first_call(bridge), platform_key=self._key)
                self._registered.add(klass)
        return sorted(klass.__qualname__ for klass in self._registered)

    def around_dispatch(self, original: Forward, layer: Any, *args: Any, **kwargs: Any) -> Forward:
        """AROUND hook of ``CustomOp.dispatch_forward``: which method shall ``layer`` run, where nothing can be registered?"""
        self._decide = original
        bridge = _bridge(type(layer))
        if bridge is None or any(_overridden(type(layer), _find(bridge.layer))):
            return original(layer, *args, **kwargs)  # type: ignore[no-any-return]  # a method of the layer
        return partial(self._first_call(bridge), layer)

    def _first_call(self, bridge: Bridge) -> Forward:
        def first_call(layer: Any, *args: Any, **kwargs: Any) -> Any:
            forward = self._settle(layer, bridge)
            self._called()
            return forward(*args, **kwargs)

        first_call.bridge = bridge  # type: ignore[attr-defined]  # how settle_layer knows ours
        return first_call

    def _settle(self, layer: Any, bridge: Bridge) -> Forward:
        forward = self._bind(layer, bridge)
        # Only where the layer still points at us: whoever swapped the method keeps it.
        if _ours(layer) is not None:
            layer._forward_method = forward
        return forward

    def _bind(self, layer: Any, bridge: Bridge) -> Forward:
        native = self._own_method(layer)
        forward, left = bind_layer(self._manager, self._config, layer, bridge, native, self._mode())
        if left is not None:
            self._left[layer] = left
        return forward

    def _own_method(self, layer: Any) -> Forward:
        """What SGLang would run without us: on our platform the layer's method for the key, else the one for any platform."""
        if self._decide is not None:
            return self._decide(layer)
        name = f"forward_{self._key}"
        base = _find(CUSTOM_OP)
        below = type(layer).__mro__[: type(layer).__mro__.index(base)]
        return getattr(layer, name if any(name in vars(klass) for klass in below) else "forward_oot")  # type: ignore[no-any-return]

    def settle_layer(self, layer: Any) -> str | None:
        """Make sure a layer of the model is decided. Returns None, or what is wrong."""
        bridge = _ours(layer)
        if bridge is not None:
            self._settle(layer, bridge)
            return None
        base = _bridge(type(layer))
        current = getattr(layer, "_forward_method", None)
        if base is None:
            reason = next((LEFT[name] for name in _names(type(layer)) if name in LEFT), None)
            if reason is not None:
                self._left[layer] = ("", type(layer).__name__, reason)
            return None
        if layer in self._left or getattr(getattr(current, "__func__", None), "dispatched_by_fl", False):
            return None
        own = list(_overridden(type(layer), _find(base.layer)))
        if own:
            self._left[layer] = (base.operator(layer), type(layer).__name__, f"overrides {', '.join(own)}")
        elif type(layer) not in self._registered and current == self._own_method(layer):
            # A subclass that was imported after the registration, with the method it then got.
            layer._forward_method = self._bind(layer, base)
        elif getattr(current, "__self__", None) is layer and _bridge_of(_answer(layer)) is not None:
            # It was answered with ours, and then took another one by itself.
            self._left[layer] = (base.operator(layer), type(layer).__name__, "SGLang pinned its own method in __init__")
        else:
            return (
                f"{type(layer).__name__} runs {getattr(current, '__qualname__', current)!r} and not what it got from us"
            )
        return None

    def left(self) -> list[tuple[str, str, str]]:
        """(operator, layer class, reason) of every live layer that stays with SGLang."""
        return list(self._left.values())


def _bridge(klass: type) -> Bridge | None:
    """Of the class or the nearest ancestor that has one."""
    return next((bridge for bridge in map(BRIDGES.get, _names(klass)) if bridge is not None), None)


def _ours(layer: Any) -> Bridge | None:
    """The bridge of the forward of ours that the layer got in ``__init__`` and that has not decided yet."""
    return _bridge_of(getattr(layer, "_forward_method", None))


def _answer(layer: Any) -> Any:
    """Of the place where SGLang decides, as it is now."""
    return layer.dispatch_forward()


def _bridge_of(forward: Any) -> Bridge | None:
    """Of a forward of ours that has not decided yet; None for any other."""
    return getattr(getattr(forward, "func", None), "bridge", None)


def _find(dotted: str) -> Any:
    module, _, name = dotted.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SeamError(
            f"SGLang {installed_version()} has no {dotted}, which our operators are registered for ({error}); "
            "install a version of SGLang that this sglang-fl was tested with, or a newer sglang-fl"
        ) from error


def _names(klass: type) -> list[str]:
    return [f"{k.__module__}.{k.__qualname__}" for k in klass.__mro__]


def _family(klass: type) -> Iterator[type]:
    """A class and those of its subclasses so far that override no forward: SGLang looks for the exact class."""
    yield klass
    sub: type
    for sub in klass.__subclasses__():
        if not any(map(_decides, vars(sub))):
            yield from _family(sub)


def _overridden(klass: type, base: type) -> Iterator[str]:
    for between in klass.__mro__[: klass.__mro__.index(base)]:
        yield from (f"{between.__name__}.{name}" for name in vars(between) if _decides(name))


def _decides(name: str) -> bool:
    """Whether a class that defines a method of this name may run another one than its base."""
    return name.startswith("forward") or name == "dispatch_forward"
