# SPDX-License-Identifier: Apache-2.0
"""``Site``: one place where an operator is called. ``site.fn`` is what runs there now; a call looks at nothing else.

The manager rewrites ``fn`` when the policy, the registry or a demotion changes the decision. The caller's side is
always

    fn = site.fn
    try:
        return fn(obj, ...)
    except Exception as error:
        return site.recover(error, obj, ...)

which costs one attribute load more than calling the implementation itself. (``site.fn(...)`` in one expression is a
method call to the interpreter, which looks for a method first.)
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fl_dispatch import failure
from fl_dispatch.facts import is_tracing
from fl_dispatch.limits import positional
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
        traced: whether ``torch.compile`` may trace calls here; None: as the manager was told for all (``configure``).
        native: the framework's own method as a candidate, where there is one.

    Attributes:
        fn: the callable in effect, with the operator's standard signature.
        plain: the same without regard to policy contexts; differs from ``fn`` only for shared sites.
        selection: the decision behind it; None until first needed.
        calls: calls of the layer, when the manager counts them (eager mode only).
        graphs: compiled or captured graphs that hold the site, counted by the adapter that owns it.
        past_calls: calls counted while another implementation was in effect, by its id.
        parts: where the number of tokens of a call decides: upper bound (None: more than the last) and a site of its own
            for each; ``fn`` picks one of them. Otherwise nothing.
        compiled: what a graph runs in place of ``fn`` where a trace could not look into that; made while it is traced.
        fallbacks: calls another candidate or the framework had to serve, by the id of the one in effect and what served.
    """

    __slots__ = (
        "__weakref__",
        "_obj",
        "calls",
        "compiled",
        "device_type",
        "dtype",
        "fallbacks",
        "fn",
        "graphs",
        "label",
        "manager",
        "native",
        "op_name",
        "parts",
        "past_calls",
        "plain",
        "selection",
        "traced",
    )

    def __init__(
        self,
        manager: OpManager,
        op_name: str,
        obj: Any = None,
        label: str = "",
        device_type: str | None = None,
        dtype: str | None = None,
        traced: bool | None = None,
        native: OpImpl | None = None,
    ) -> None:
        self.manager = manager
        self.op_name = op_name
        self.label = label
        self.device_type = device_type
        self.dtype = dtype
        self.traced = traced
        self.native = native
        self.calls = 0
        self.graphs = 0
        self.past_calls: dict[str, int] = {}
        self.fallbacks: dict[tuple[str, str], int] = {}
        self.selection: Selection | None = None
        self.parts: tuple[tuple[int | None, Site], ...] = ()
        self.compiled: Callable[..., Any] | None = None
        self._obj = _weakly(obj)
        self.plain: Callable[..., Any] = _first_call(self)
        self.fn: Callable[..., Any] = self.plain

    @property
    def obj(self) -> Any:
        """The layer, while it lives."""
        return self._obj()

    @property
    def is_traced(self) -> bool:
        """Whether ``torch.compile`` may trace calls of this layer."""
        return self.obj is not None and (self.manager.compiled if self.traced is None else self.traced)

    @property
    def impl(self) -> OpImpl | None:
        """The implementation in effect, without deciding anything."""
        return self.selection.chosen if self.selection is not None else None

    @property
    def is_native(self) -> bool:
        """Whether the framework's own method was chosen, for every number of tokens."""
        if self.parts:
            return all(part.is_native for _, part in self.parts)
        return self.native is not None and self.impl is self.native

    def leaves(self) -> tuple[Site, ...]:
        """The sites that run an implementation: its parts, or itself."""
        return tuple(part for _, part in self.parts) or (self,)

    def passed_on(self, reason: str) -> bool:
        """Note a single call that the operator's contract does not cover: the framework's own method serves it."""
        site = self.leaves()[0]
        pair = ("" if site.impl is None else site.impl.impl_id, f"the framework, {reason}")
        site.fallbacks[pair] = site.fallbacks.get(pair, 0) + 1
        return True

    # A trace notes it once: a graph runs no Python.
    passed_on._dynamo_marked_constant = True  # type: ignore[attr-defined]  # functions take any attribute

    def hand_over(self, to: Site) -> None:
        """Let another site report the calls that were counted here."""
        counted = dict(self.past_calls)
        if self.impl is not None and self.calls:
            counted[self.impl.impl_id] = counted.get(self.impl.impl_id, 0) + self.calls
        for impl_id, calls in counted.items():
            to.past_calls[impl_id] = to.past_calls.get(impl_id, 0) + calls
        for pair, calls in self.fallbacks.items():
            to.fallbacks[pair] = to.fallbacks.get(pair, 0) + calls
        self.past_calls, self.fallbacks, self.calls = {}, {}, 0

    def part_for(self, tokens: int) -> Site:
        """The site that serves a call of so many tokens."""
        for bound, part in self.parts:
            if bound is None or tokens <= bound:
                return part
        return self

    def prepare_compiled(self) -> bool:
        """Make ``compiled`` for one more graph. Dynamo runs this while it traces, as it does ``_settle``.

        False where the layer is gone whose fields it would be made for, and a copy of it lives on: what the copy runs is
        traced as it is then.
        """
        if self.compiled is None and self.obj is None:
            return False
        self.graphs += 1
        if self.compiled is None:
            from fl_dispatch.compiled import compiled_call

            self.compiled = compiled_call(self)
        return True

    prepare_compiled._dynamo_marked_constant = True  # type: ignore[attr-defined]  # functions take any attribute

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
        if self.parts:
            args, kwargs = positional(self.manager.registry.spec(self.op_name).parameters, args, kwargs)
            if len(args) > 1 and getattr(args[1], "shape", None):
                return failure.recover(self.part_for(args[1].shape[0]), error, args, kwargs)
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
