# SPDX-License-Identifier: Apache-2.0
"""``LayerBinder``: for each layer SGLang asks about, our bridge or SGLang's own method, and the reason."""

from __future__ import annotations

import inspect
import logging
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any

from fl_dispatch import Config, OpManager, Site
from sglang_fl.bridges import find_bridge
from sglang_fl.bridges.bridge import Bridge
from sglang_fl.determinism import deterministic_mode
from sglang_fl.seam import Seam

logger = logging.getLogger("sglang_fl")

Forward = Callable[..., Any]


class LayerBinder:
    """Binds layers to operators through one seam.

    Args:
        manager: decides which implementation runs.
        config: white and black list.
        seam: tells whether a layer has its fields when SGLang asks.
    """

    def __init__(self, manager: OpManager, config: Config, seam: Seam) -> None:
        self._manager = manager
        self._config = config
        self._seam = seam
        #: Every layer the seam asked about and the function we answered with; how a skipped seam is noticed. Not the
        #: method, which would hold the layer.
        self._answers: weakref.WeakKeyDictionary[Any, Forward] = weakref.WeakKeyDictionary()
        #: (operator, layer class, reason) of layers that stay with SGLang, counted by layer.
        self._left: weakref.WeakKeyDictionary[Any, tuple[str, str, str]] = weakref.WeakKeyDictionary()

    # -- the hook

    def around_seam(self, original: Forward, layer: Any, *args: Any, **kwargs: Any) -> Forward:
        """AROUND hook of the seam: which method shall ``layer`` run? What a newer SGLang also passes is passed on."""
        native: Forward = original(layer, *args, **kwargs)
        bridge, reason = find_bridge(type(layer))
        if bridge is None:
            if reason is not None:
                self._left[layer] = (reason.operator, type(layer).__name__, reason.text)
            return native
        answer = self._bind(layer, bridge, native) if self._seam.lazy else self._deferred(layer, bridge, native)
        self._answers[layer] = _function(answer)
        return answer

    def _deferred(self, layer: Any, bridge: Bridge, native: Forward) -> Forward:
        """For a seam that asks before the layer has its fields: bind when the model is loaded, or on the first call."""

        own_method = unbound(native)

        def first_call(layer: Any, *args: Any, **kwargs: Any) -> Any:
            return settle(layer)(*args, **kwargs)

        def settle(layer: Any) -> Forward:
            forward = self._bind(layer, bridge, MethodType(own_method, layer))
            self._answers[layer] = _function(forward)
            # Only where the layer still points at us: compile modes swap the method for a while.
            if getattr(layer._forward_method, "__func__", None) is first_call:
                layer._forward_method = forward
            return forward

        first_call.settle = settle  # type: ignore[attr-defined]  # how settle_layer finds it
        return method_of(layer, first_call, native)

    def _bind(self, layer: Any, bridge: Bridge, native: Forward) -> Forward:
        forward, left = bind_layer(self._manager, self._config, layer, bridge, native, deterministic_mode())
        if left is not None:
            self._left[layer] = left
        return forward

    # -- after the model is built

    def settle_layer(self, layer: Any) -> str | None:
        """Make sure a layer of the model is decided. Returns None, or what is wrong with the seam."""
        bridge, reason = find_bridge(type(layer))
        if bridge is None:
            if reason is not None:
                self._left[layer] = (reason.operator, type(layer).__name__, reason.text)
            return None
        current = layer._forward_method
        undecided = current is None
        if undecided and not self._seam.lazy:
            return f"{type(layer).__name__} was never asked about at {self._seam.target}"
        if undecided:
            current = layer._forward_method = layer._resolve_forward_method()
        settle = getattr(current, "settle", None)
        if settle is not None:
            current = settle(layer)
        answer = self._answers.get(layer)
        if answer is not None and (answer is _function(current) or layer in self._left):
            return None
        if answer is None and getattr(_function(current), "dispatched_by_fl", False):
            return None  # a deep copy of a layer that was decided
        if answer is None and (undecided or not self._seam.lazy):
            return f"{type(layer).__name__} was never asked about at {self._seam.target}"
        if self._pinned(layer, current) and self._asked(layer):
            self._left[layer] = (
                bridge.operator(layer),
                type(layer).__name__,
                "SGLang pinned its own method in __init__",
            )
            return None
        running = getattr(current, "__qualname__", current)
        return f"{type(layer).__name__} runs {running!r} and not what {self._seam.target} answered"

    def _asked(self, layer: Any) -> bool:
        """Whether the seam still answers with ours; not where a plug-in around us answers with a method of the layer's own."""
        answer = _function(getattr(layer, self._seam.method)())
        return answer is self._answers.get(layer)

    @staticmethod
    def _pinned(layer: Any, current: Forward) -> bool:
        """Whether ``__init__`` set one of the layer's own methods, as SGLang does in deterministic and vendor modes."""
        return getattr(current, "__self__", None) is layer and getattr(current, "__name__", "").startswith("forward_")

    def left(self) -> list[tuple[str, str, str]]:
        """(operator, layer class, reason) of every live layer that stays with SGLang."""
        return list(self._left.values())


def bind_layer(
    manager: OpManager, config: Config, layer: Any, bridge: Bridge, native: Forward, mode: str | None
) -> tuple[Forward, tuple[str, str, str] | None]:
    """Decide for one layer.

    Args:
        manager: decides which implementation runs.
        config: white and black list.
        layer: it has its fields.
        bridge: of its class.
        native: SGLang's own bound method.
        mode: why every layer stays with SGLang; None: they do not.

    Returns:
        what the layer is to run, and where that is ``native`` its operator, class and the reason.
    """
    op_name, name = bridge.operator(layer), type(layer).__name__
    reason = config.takes_over(op_name) or mode or bridge.outside(layer)
    if reason is not None:
        return native, (op_name, name, reason)
    site = manager.bind(op_name, layer, label=name, native=bridge.standard(unbound(native)))
    if site.is_native and site.selection is not None:
        return native, (op_name, name, f"by policy: {site.selection.why}")
    return method_of(layer, bound_function(bridge, layer, site, native), native), None


def bound_function(bridge: Bridge, layer: Any, site: Site, native: Forward) -> Forward:
    """What takes the place of a layer's method, as a function of the layer; ``native`` is SGLang's own bound method."""
    return tolerant(bridge, bridge.make(layer, site, unbound(native)), native, site)


def method_of(layer: Any, function: Forward, native: Forward) -> Forward:
    """Our function as the layer's method.

    A method and not a closure over the layer: a deep copy of the layer then has its own. It goes by the name of the method
    whose place it takes: pickled, a bound method is its object and its name, so a layer read back elsewhere runs SGLang's own.
    """
    function.__name__ = getattr(native, "__name__", "forward_native")
    function.dispatched_by_fl = True  # type: ignore[attr-defined]  # functions take any attribute
    return MethodType(function, layer)


def _function(method: Forward) -> Forward:
    return getattr(method, "__func__", method)


def unbound(method: Forward) -> Forward:
    """A bound method as a function of the layer; anything else is taken to belong to whatever layer it came from."""
    function = getattr(method, "__func__", None)
    return function if function is not None else lambda layer, *args, **kwargs: method(*args, **kwargs)


def tolerant(bridge: Bridge, dispatched: Forward, native: Forward, site: Site) -> Forward:
    """Accept parameters a newer SGLang added: a call that uses one goes to SGLang's own method.

    Costs nothing when SGLang's method has no parameter the bridge does not know.

    Args:
        bridge: tells the known parameters.
        dispatched: function of the layer and SGLang's arguments.
        native: SGLang's own bound method.
        site: notes those calls.
    """
    try:
        parameters = inspect.signature(native).parameters.values()
    except (TypeError, ValueError):
        return dispatched
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if set(names) <= bridge.parameters:
        return dispatched
    known = len([name for name in names if name in bridge.parameters])
    own_method = unbound(native)

    def with_new_parameters(layer: Any, *args: Any, **kwargs: Any) -> Any:
        new = {name: value for name, value in kwargs.items() if name not in bridge.parameters}
        if len(args) > known or any(value is not None for value in new.values()):
            site.passed_on(f"new parameters {', '.join(new) or 'given by position'}")
            return own_method(layer, *args, **kwargs)
        return dispatched(layer, *args, **{name: value for name, value in kwargs.items() if name not in new})

    return with_new_parameters
