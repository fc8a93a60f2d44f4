# SPDX-License-Identifier: Apache-2.0
"""``Site``: one place where an operator is called. ``site.fn`` is what runs there now; nothing else is looked at on a call.

The manager rewrites ``fn`` when the policy, the registry or a demotion changes the decision. The caller's side is always

    try:
        return site.fn(obj, ...)
    except Exception as error:
        return site.recover(error, obj, ...)

which costs one attribute load more than calling the implementation itself.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fl_dispatch import failure
from fl_dispatch.facts import call_verdict, dtype_name, layer_verdict
from fl_dispatch.ops.spec import OpSpec
from fl_dispatch.selection import Selection
from fl_dispatch.types import OpImpl

if TYPE_CHECKING:
    from fl_dispatch.manager import OpManager


class Site:
    """One call site of one operator.

    Args:
        manager: the manager that keeps ``fn`` right.
        op_name: the operator.
        obj: the layer it is bound to (held weakly), or None for a place that serves any layer.
        label: what reports call it, for example the layer's class.
        device_type: where the layer runs, when known.

    Attributes:
        fn: the callable in effect, with the operator's standard signature.
        selection: the decision behind it; None until first needed.
        calls: calls counted by the adapter that owns the site (eager mode only).
        past_calls: calls counted while another implementation was in effect, by its id.
        fallbacks: calls that another candidate had to serve, by its id.
    """

    __slots__ = ("__weakref__", "_obj", "calls", "device_type", "fallbacks", "fn", "label", "manager", "op_name", "past_calls", "selection")

    def __init__(
        self, manager: OpManager, op_name: str, obj: Any = None, label: str = "", device_type: str | None = None
    ) -> None:
        self.manager = manager
        self.op_name = op_name
        self.label = label
        self.device_type = device_type
        self.calls = 0
        self.past_calls: dict[str, int] = {}
        self.fallbacks: dict[str, int] = {}
        self.selection: Selection | None = None
        self._obj = _weakly(obj)
        self.fn: Callable[..., Any] = _first_call(self)

    @property
    def obj(self) -> Any:
        return self._obj()

    @property
    def impl(self) -> OpImpl | None:
        """The implementation in effect, without deciding anything."""
        return self.selection.chosen if self.selection is not None else None

    def settle(self) -> Callable[..., Any]:
        """Decide now if that has not happened yet; returns the callable in effect."""
        if self.selection is None:
            self.manager.decide(self)
        return self.fn

    # Dynamo runs this while tracing and takes its result as a constant instead of tracing through the decision.
    settle._dynamo_marked_constant = True  # type: ignore[attr-defined]  # what torch.compiler.assume_constant_result sets

    def recover(self, error: Exception, *args: Any, **kwargs: Any) -> Any:
        """What to do when ``fn`` raised: another candidate where that is safe, else a readable error."""
        return failure.recover(self, error, args, kwargs)


def _weakly(obj: Any) -> Callable[[], Any]:
    if obj is None:
        return lambda: None
    try:
        return weakref.ref(obj)
    except TypeError:
        return lambda: obj


def _first_call(site: Site) -> Callable[..., Any]:
    def first_call(*args: Any, **kwargs: Any) -> Any:
        return site.settle()(*args, **kwargs)

    return first_call


def compose(site: Site, impl: OpImpl) -> Callable[..., Any]:
    """The callable for a site: the implementation itself, with only those checks that the decision could not settle."""
    ledger = site.manager.failures
    fn = impl.fn
    if ledger.is_watched(impl):
        fn = _watched(site, impl, fn)
    per_layer = site.obj is None and bool(impl.honours or impl.supports_layer)
    demoted = ledger.demoted_dtypes(impl)
    if not (impl.limited or per_layer or demoted):
        return fn
    if impl.supports is None and impl.devices is None and not per_layer and impl.dtypes is not None:
        return _dtype_checked(site, impl, fn, demoted)
    return _checked(site, impl, fn, demoted, per_layer)


def _watched(site: Site, impl: OpImpl, fn: Callable[..., Any]) -> Callable[..., Any]:
    """After a failure: the first success takes this wrapper out again."""

    @functools.wraps(fn)
    def watched(*args: Any, **kwargs: Any) -> Any:
        result = fn(*args, **kwargs)
        site.manager.succeeded(impl)
        return result

    return watched


def _dtype_checked(site: Site, impl: OpImpl, fn: Callable[..., Any], demoted: frozenset[str]) -> Callable[..., Any]:
    import torch

    allowed = frozenset(getattr(torch, name) for name in (impl.dtypes or frozenset()) - demoted)

    def dtype_checked(obj: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        if x.dtype in allowed:
            return fn(obj, x, *args, **kwargs)
        return failure.pass_on(site, impl, _refusal(impl, (obj, x, *args), kwargs, demoted), (obj, x, *args), kwargs)

    return dtype_checked


def _checked(
    site: Site, impl: OpImpl, fn: Callable[..., Any], demoted: frozenset[str], per_layer: bool
) -> Callable[..., Any]:
    def checked(*args: Any, **kwargs: Any) -> Any:
        reason = layer_verdict(impl, args[0]) if per_layer else None
        reason = reason or _refusal(impl, args, kwargs, demoted)
        if reason is None:
            return fn(*args, **kwargs)
        return failure.pass_on(site, impl, reason, args, kwargs)

    return checked


def _refusal(impl: OpImpl, args: Any, kwargs: Any, demoted: frozenset[str]) -> Any:
    if demoted and len(args) > 1 and dtype_name(args[1].dtype) in demoted:
        return f"demoted for {dtype_name(args[1].dtype)} after repeated failures"
    return call_verdict(impl, args, kwargs)


@functools.cache
def _guard_factory(op_name: str, parameters: tuple[tuple[str, bool], ...], defaults: tuple[Any, ...]) -> Any:
    """Compile ``def OP(obj, ...)`` with exactly the standard parameters: a generic ``*args`` would cost twice as much."""
    names = ", ".join(name for name, _ in parameters)
    header = ", ".join(f"{name}=defaults[{i}]" if has else name for i, (name, has) in enumerate(parameters))
    source = (
        f"def make(site, defaults):\n"
        f"    def {op_name}({header}):\n"
        f"        try:\n"
        f"            return site.fn({names})\n"
        f"        except Exception as error:\n"
        f"            return site.recover(error, {names})\n"
        f"    return {op_name}\n"
    )
    namespace: dict[str, Any] = {}
    exec(compile(source, f"<fl_dispatch guard of {op_name}>", "exec"), namespace)  # noqa: S102  (as dataclasses does)
    return namespace["make"]


def guarded(site: Site, spec: OpSpec) -> Callable[..., Any]:
    """A function with the operator's standard signature that calls through the site. Its ``site`` attribute is the site."""
    parameters = spec.signature.parameters.values()
    shape = tuple((p.name, p.default is not p.empty) for p in parameters)
    defaults = tuple(None if p.default is p.empty else p.default for p in parameters)
    function: Callable[..., Any] = _guard_factory(spec.name, shape, defaults)(site, defaults)
    function.__doc__ = spec.reference.__doc__
    function.site = site  # type: ignore[attr-defined]  # keeps the site alive as long as its function
    return function
