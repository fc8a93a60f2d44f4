# SPDX-License-Identifier: Apache-2.0
"""``LayerBinder``: for each layer of a model, our forward or vLLM's own, and the reason."""

from __future__ import annotations

import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from fl_dispatch import Config, OpManager, SeamError, Site, compiled_call
from vllm_fl_adapter.bridges import Bridge, Forward, find_bridge
from vllm_fl_adapter.determinism import deterministic_mode
from vllm_fl_adapter.replacements import Replacement, runs_fl_forward


class LayerBinder:
    """Binds layers to operators.

    Args:
        manager: decides which implementation runs.
        config: white and black list.
    """

    def __init__(self, manager: OpManager, config: Config) -> None:
        self._manager = manager
        self._config = config
        #: Class names that could not be replaced, with the reason.
        self.not_replaced: dict[str, str] = {}
        #: Replacements that were constructed and are not bound yet.
        self._waiting: weakref.WeakSet[Any] = weakref.WeakSet()
        #: Sites by layer, for those that are served.
        self._sites: weakref.WeakKeyDictionary[Any, Site] = weakref.WeakKeyDictionary()
        #: (operator, layer class, reason) of layers that stay with vLLM, counted by layer.
        self._left: weakref.WeakKeyDictionary[Any, tuple[str, str, str]] = weakref.WeakKeyDictionary()

    def constructed(self, layer: Any, native: Forward) -> None:
        """A replacement is being constructed; ``native`` is the method that vLLM would run without us."""
        layer.__dict__["fl_native"] = native
        self._waiting.add(layer)

    def forget(self, layer: Any) -> None:
        """A replacement that no model has."""
        self._waiting.discard(layer)
        del layer.__dict__["fl_native"]

    def waiting(self) -> list[Any]:
        """Layers that were constructed and are not bound."""
        return list(self._waiting)

    # -- binding

    def settle(self, layer: Any, *, compiled: bool = False) -> Forward:
        """Decide for one replacement, once; returns the bound method that runs from now on.

        Args:
            layer: the replacement, completely constructed.
            compiled: it is part of a module that vLLM compiles: then an implementation must be able to be in a graph.

        Raises:
            SelectionError: nothing may run under the policy.
        """
        if layer in self._waiting:
            _refuse_in_trace(layer)
            self._waiting.discard(layer)
            bridge = layer.fl_bridge
            operator = bridge.operator(layer)
            reason = self._reason_to_leave(layer, operator)
            if reason is None:
                self._take_over(layer, bridge, operator, compiled)
            else:
                self._give_back(layer, operator, reason)
            if _kept(layer.fl_native) or not isinstance(layer, Replacement):
                del layer.__dict__["fl_native"]
        forward: Forward = layer._forward_method
        return forward

    def _reason_to_leave(self, layer: Any, operator: str) -> str | None:
        if not runs_fl_forward(layer):
            name = type(layer).name
            return f"switched off by -{name} in custom_ops, or pinned to another method by vLLM"
        outside: str | None = layer.fl_bridge.outside(layer)
        return self._config.takes_over(operator) or deterministic_mode() or outside

    def _take_over(self, layer: Any, bridge: Bridge, operator: str, compiled: bool) -> None:
        klass = layer.fl_vllm_class
        own = bridge.standard(_without_layer(layer))
        site = self._manager.bind(operator, layer, label=klass.__name__, traced=compiled, native=own)
        if site.is_native and site.selection is not None:
            self._give_back(layer, operator, f"by policy: {site.selection.why}")
            return
        forward = bridge.eager(layer, site, klass.forward_native)
        if compiled:
            forward = _two_ways(forward, bridge.traced(layer, compiled_call(site), klass.forward_native), site)
        layer._forward_method = types.MethodType(forward, layer)
        self._sites[layer] = site

    def _give_back(self, layer: Any, operator: str, reason: str) -> None:
        """Make it an instance of vLLM's class again, as if we were not there."""
        klass = layer.fl_vllm_class
        if runs_fl_forward(layer):
            layer._forward_method = layer.fl_native
        layer.__class__ = klass
        self._left[layer] = (operator, klass.__name__, reason)

    # -- what became of them

    def note_left(self, modules: Iterable[Any]) -> None:
        """Find the layers of a model that have an operator's function and were never replaced."""
        for layer in modules:
            if isinstance(layer, Replacement) or layer in self._left:
                continue
            bridge, left = find_bridge(type(layer))
            if bridge is not None:
                operator, name = bridge.operators[0], type(layer).__name__
                reason = self._config.takes_over(operator) or self.not_replaced.get(name)
                self._left[layer] = (operator, name, reason or "vLLM defined its class after the plug-in was loaded")
            elif left is not None:
                self._left[layer] = (left.operator, type(layer).__name__, left.text)

    def left(self) -> list[tuple[str, str, str]]:
        """(operator, layer class, reason) of every live layer that stays with vLLM."""
        return list(self._left.values())

    def sites_of(self, modules: Iterable[Any]) -> Iterator[Site]:
        """The sites of those modules that are served."""
        for layer in modules:
            site = self._sites.get(layer)
            if site is not None:
                yield site


def _kept(native: Forward) -> bool:
    """Whether vLLM's method lives on without the layer: a method or a static method, but not vLLM's compiled form of one."""
    return hasattr(native, "__func__") or (isinstance(native, types.FunctionType) and native.__closure__ is None)


def _without_layer(layer: Any) -> Forward:
    """The method vLLM would run as a function of the layer, which it must not hold: the site lives as long as it does."""
    if not _kept(layer.fl_native):
        return lambda layer, *args, **kwargs: layer.fl_native(*args, **kwargs)
    return _unbound(layer.fl_native)


def _unbound(method: Forward) -> Forward:
    """A method as a function of the layer; a static method takes none."""
    function: Forward | None = getattr(method, "__func__", None)
    return function if function is not None else lambda layer, *args, **kwargs: method(*args, **kwargs)


def _refuse_in_trace(layer: Any) -> None:
    import torch

    if torch.compiler.is_compiling():
        raise SeamError(
            f"vLLM compiles {type(layer).__name__} before vllm-fl-adapter could bind it to an implementation"
        )


def _two_ways(eager: Forward, traced: Forward, site: Site) -> Forward:
    """One method for a layer that vLLM compiles, and may also call outside of the graph."""
    from torch.compiler import is_compiling

    def in_a_graph() -> bool:
        site.graphs += 1
        return True

    # Dynamo runs this while it traces, instead of tracing through it: one call a graph.
    in_a_graph._dynamo_marked_constant = True  # type: ignore[attr-defined]  # functions take any attribute

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            in_a_graph()
            return traced(self, *args, **kwargs)
        return eager(self, *args, **kwargs)

    return forward
