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
from fl_dispatch.facts import is_tracing
from fl_dispatch.limits import Checker, check_for, dtype_of, positional, torch_dtypes
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
        device_type: where the layer runs, when known; then no call is checked for it.
        dtype: name of the dtype of the layer's inputs, when its construction fixes it; then no call is checked for it.

    Attributes:
        fn: the callable in effect, with the operator's standard signature.
        plain: the same without regard to policy contexts; differs from ``fn`` only for shared sites.
        selection: the decision behind it; None until first needed.
        calls: calls counted by the adapter that owns the site (eager mode only).
        past_calls: calls counted while another implementation was in effect, by its id.
        fallbacks: calls another candidate had to serve, by the ids of the one in effect and the one that served.
    """

    __slots__ = (
        "__weakref__", "_obj", "calls", "device_type", "dtype", "fallbacks", "fn", "label", "manager", "op_name",
        "past_calls", "plain", "selection",
    )  # fmt: skip

    def __init__(
        self,
        manager: OpManager,
        op_name: str,
        obj: Any = None,
        label: str = "",
        device_type: str | None = None,
        dtype: str | None = None,
    ) -> None:
        self.manager = manager
        self.op_name = op_name
        self.label = label
        self.device_type = device_type
        self.dtype = dtype
        self.calls = 0
        self.past_calls: dict[str, int] = {}
        self.fallbacks: dict[tuple[str, str], int] = {}
        self.selection: Selection | None = None
        self._obj = _weakly(obj)
        self.plain: Callable[..., Any] = _first_call(self)
        self.fn: Callable[..., Any] = self.plain

    @property
    def obj(self) -> Any:
        """The layer, while it lives."""
        return self._obj()

    @property
    def impl(self) -> OpImpl | None:
        """The implementation in effect, without deciding anything."""
        return self.selection.chosen if self.selection is not None else None

    def settle(self) -> Callable[..., Any]:
        """Decide now if that has not happened yet; returns the callable in effect."""
        self._settle(False)
        return self.fn

    def _settle(self, tracing: bool) -> bool:
        # Dynamo runs this while tracing, instead of tracing through the decision. It has a guard on `fn` by then: leave
        # that as it is, or the graph would be compiled a second time. What it reads next is `plain`.
        if self.selection is None:
            before = self.fn
            self.manager.decide(self)
            if tracing:
                self.fn = before
        return True

    # What torch.compiler.assume_constant_result sets; that decorator would import torch.
    _settle._dynamo_marked_constant = True  # type: ignore[attr-defined]  # functions take any attribute

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
    """What an undecided site runs. It stays where the first call came from a trace, so that the graph stays valid."""

    def first_call(*args: Any, **kwargs: Any) -> Any:
        site._settle(is_tracing())
        return site.plain(*args, **kwargs)

    return first_call


def compose(site: Site, impl: OpImpl) -> Callable[..., Any]:
    """The callable for a site: the implementation itself, with only those checks that the decision could not settle."""
    ledger = site.manager.failures
    fn = impl.fn
    if ledger.is_watched(impl):
        fn = _watched(site, impl, fn)
    verdict = check_for(site, impl)
    if verdict is None:
        return fn
    dtypes_alone = impl.dtypes is not None and site.dtype is None and impl.supports is None
    dtypes_alone = dtypes_alone and (impl.devices is None or site.device_type is not None)
    dtypes_alone = dtypes_alone and (site.obj is not None or not (impl.honours or impl.supports_layer))
    if dtypes_alone and not ledger.demoted_dtypes(impl):
        return _dtype_checked(site, impl, fn, verdict)
    return _checked(site, impl, fn, verdict)


def _watched(site: Site, impl: OpImpl, fn: Callable[..., Any]) -> Callable[..., Any]:
    """After a failure: the first success takes this wrapper out again."""

    @functools.wraps(fn)
    def watched(*args: Any, **kwargs: Any) -> Any:
        result = fn(*args, **kwargs)
        if not is_tracing():
            site.manager.succeeded(impl, dtype_of(args))
        return result

    return watched


class _Missing:
    """Stands for an argument that was passed by name; it has the dtype that nothing takes."""

    dtype = None


_MISSING = _Missing()


def _dtype_checked(site: Site, impl: OpImpl, fn: Callable[..., Any], verdict: Checker) -> Callable[..., Any]:
    """The most frequent check, without the cost of the general one."""
    allowed = torch_dtypes(impl.dtypes or frozenset())
    checked = _checked(site, impl, fn, verdict)

    def dtype_checked(obj: Any = _MISSING, x: Any = _MISSING, /, *args: Any, **kwargs: Any) -> Any:
        if x.dtype in allowed:
            return fn(obj, x, *args, **kwargs)
        given = tuple(value for value in (obj, x) if value is not _MISSING)
        return checked(*given, *args, **kwargs)

    return dtype_checked


def _checked(site: Site, impl: OpImpl, fn: Callable[..., Any], verdict: Checker) -> Callable[..., Any]:
    parameters = site.manager.registry.spec(site.op_name).parameters
    rest = tuple((other.fn, check_for(site, other)) for other in failure.after(site, impl))

    def checked(*args: Any, **kwargs: Any) -> Any:
        if len(args) < 2:
            args, kwargs = positional(parameters, args, kwargs)
        reason = verdict(args, kwargs)
        if reason is None:
            return fn(*args, **kwargs)
        if is_tracing():
            # Here nothing may be counted or logged: find the candidate that this graph is to run.
            for other, other_verdict in rest:
                if other_verdict is None or other_verdict(args, kwargs) is None:
                    return other(*args, **kwargs)
        return failure.pass_on(site, impl, reason, args, kwargs)

    return checked


@functools.cache
def _guard_factory(op_name: str, parameters: tuple[tuple[str, bool], ...]) -> Any:
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
    exec(compile(source, f"<fl_dispatch guard of {op_name}>", "exec"), namespace)
    return namespace["make"]


def guarded(site: Site, spec: OpSpec) -> Callable[..., Any]:
    """A function with the operator's standard signature that calls through the site. Its ``site`` attribute is the site."""
    parameters = spec.signature.parameters.values()
    shape = tuple((p.name, p.default is not p.empty) for p in parameters)
    defaults = tuple(None if p.default is p.empty else p.default for p in parameters)
    function: Callable[..., Any] = _guard_factory(spec.name, shape)(site, defaults)
    function.__doc__ = spec.reference.__doc__
    function.site = site  # type: ignore[attr-defined]  # keeps the site alive as long as its function
    return function
