# SPDX-License-Identifier: Apache-2.0
"""``OpManager``: the one stateful module. It owns the call sites and keeps each of them pointing at the right callable."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from fl_dispatch import facts
from fl_dispatch.discovery import VendorRecord, discover
from fl_dispatch.errors import ConfigError, FrozenSelectionError, UnknownOperatorError, did_you_mean
from fl_dispatch.failure import FailureLedger
from fl_dispatch.policy import SelectionPolicy
from fl_dispatch.registry import OpRegistry
from fl_dispatch.selection import DeviceFacts, Selection, select
from fl_dispatch.site import Site, compose, guarded
from fl_dispatch.types import OpImpl

logger = logging.getLogger("fl_dispatch")


class OpManager:
    """Decides once per call site, says why, and gets out of the way.

    Args:
        registry: the implementations; when omitted, a new one that is filled with the built-in backends and every installed
            vendor when the first decision is made.
        policy: the user's wishes.
        device_type: where operators run, for example ``"cuda"``; found out from torch when omitted.
        policy_source: gives the policy when it is first needed and neither ``policy`` nor ``configure`` did.
    """

    def __init__(
        self,
        registry: OpRegistry | None = None,
        policy: SelectionPolicy | None = None,
        *,
        device_type: str | None = None,
        policy_source: Callable[[], SelectionPolicy] = SelectionPolicy,
    ) -> None:
        self._registry = OpRegistry() if registry is None else registry
        self._discovered = registry is not None
        self._policy = policy
        self._policy_source = policy_source
        self._device_type = device_type
        self._lock = threading.RLock()
        self._sites: weakref.WeakSet[Site] = weakref.WeakSet()
        self._shared: dict[str, Site] = {}
        self._context_sites: dict[tuple[str, SelectionPolicy], Site] = {}
        self._context: contextvars.ContextVar[SelectionPolicy | None] = contextvars.ContextVar("fl_policy", default=None)
        self._contexts_open = 0
        self._availability: dict[Callable[[], Any], str | None] = {}
        self._frozen: str | None = None
        self.vendors: tuple[VendorRecord, ...] = ()
        self.failures = FailureLedger()
        self._registry.on_change(self._registered)

    # -- state

    @property
    def registry(self) -> OpRegistry:
        """The registry, filled on first use."""
        with self._lock:
            if not self._discovered:
                self._discovered = True
                self.vendors = discover(self._registry, self.policy)
                self._check_impl_tokens(self.policy)
        return self._registry

    @property
    def policy(self) -> SelectionPolicy:
        """The policy in force."""
        if self._policy is None:
            self._policy = self._policy_source()
        return self._policy

    @property
    def device_type(self) -> str:
        return self._device_type or facts.default_device_type()

    def configure(self, *, policy: SelectionPolicy | None = None, device_type: str | None = None) -> None:
        """Change the policy or the device; every site follows at once, and demotions are forgotten.

        Raises:
            UnknownOperatorError: ``policy.per_op`` names an operator that does not exist.
            FrozenSelectionError: a graph was captured or compiled with the present selection.
        """
        with self._lock:
            self._refuse_if_frozen("the policy")
            if policy is not None:
                for op_name in policy.per_op:
                    if op_name not in self._registry.op_names():
                        hint = did_you_mean(op_name, self._registry.op_names())
                        raise UnknownOperatorError(f"per_op names unknown operator {op_name!r}; {hint}")
                if self._discovered:
                    self.vendors = discover(self._registry, policy, already=self.vendors)
                    self._check_impl_tokens(policy)
                self._policy = policy
            if device_type is not None:
                self._device_type = device_type
            self.failures.reset()
            self._context_sites.clear()
            self._redecide()

    def reset(self) -> None:
        """Forget demotions and availability, and decide every site anew."""
        with self._lock:
            self._refuse_if_frozen("the selection")
            self.failures.reset()
            self._availability.clear()
            self._redecide()

    def freeze(self, why: str) -> None:
        """From now on refuse to change the selection: ``why`` names the graph that was captured or compiled with it."""
        self._frozen = why

    def unfreeze(self) -> None:
        """Allow changes again, after the graphs are gone."""
        self._frozen = None

    def _check_impl_tokens(self, policy: SelectionPolicy) -> None:
        """An ``impl:ID`` that no registered implementation has is a misspelling, unless a vendor is missing."""
        table = self._registry.snapshot()
        if any(record.status != "registered" for record in self.vendors):
            return
        orders = [(op, order) for op, order in policy.per_op.items()] + [("", policy.prefer)]
        for op_name, order in orders:
            ids = {i.impl_id for op, impls in table.items() for i in impls if op_name in ("", op)}
            for word in order:
                if word.startswith("impl:") and word.removeprefix("impl:") not in ids:
                    where = f"operator {op_name!r}" if op_name else "any operator"
                    hint = did_you_mean(word.removeprefix("impl:"), ids)
                    raise ConfigError(f"token {word!r}: no implementation of {where} has this id; {hint}")

    def _refuse_if_frozen(self, what: str) -> None:
        if self._frozen is not None:
            raise FrozenSelectionError(
                f"{what} cannot change any more: {self._frozen} holds the present selection and would go on running it; "
                "set it before start-up, or drop the graphs and call unfreeze()"
            )

    # -- deciding

    def select(
        self,
        op_name: str,
        *,
        obj: Any = None,
        facts_: DeviceFacts | None = None,
        policy: SelectionPolicy | None = None,
    ) -> Selection:
        """The decision for one operator, with a reason for every candidate; nothing is called or changed."""
        impls = self.registry.get(op_name)
        facts_ = facts_ or facts.facts_for(self._device_type)
        policy = policy or self.policy
        rejected: dict[str, str] = {}
        for impl in impls:
            if impl.vendor and policy.vendor_verdict(impl.vendor):
                continue
            reason = self._unavailable(impl)
            if reason is None and obj is not None:
                reason = facts.layer_verdict(impl, obj)
            if reason is None and facts_.dtype in self.failures.demoted_dtypes(impl):
                reason = f"demoted for {facts_.dtype}: it failed repeatedly; a policy change or reset() lifts this"
            if reason is not None:
                rejected[impl.impl_id] = reason
        return select(op_name, impls, policy, facts_, rejected)

    def _unavailable(self, impl: OpImpl) -> str | None:
        probe = impl.available
        if probe is None:
            return None
        if probe not in self._availability:
            self._availability[probe] = facts.unavailable_reason(probe)
        return self._availability[probe]

    def decide(self, site: Site, policy: SelectionPolicy | None = None) -> None:
        """Point a site at the implementation the policy chooses; raises SelectionError when none may run."""
        with self._lock:
            where = facts.facts_for(site.device_type or self._device_type)
            selection = self.select(site.op_name, obj=site.obj, facts_=where, policy=policy)
            impl = selection.require()
            before = site.impl
            if before is not None and before is not impl and site.calls:
                site.past_calls[before.impl_id] = site.past_calls.get(before.impl_id, 0) + site.calls
                site.calls = 0
            site.selection = selection
            site.fn = compose(site, impl)
            if self._contexts_open and self._shared.get(site.op_name) is site:
                site.fn = self._in_context(site, site.fn)

    def _redecide(self, op_name: str | None = None) -> None:
        for site in list(self._sites):
            if site.selection is not None and op_name in (None, site.op_name):
                self.decide(site)

    def _registered(self, op_name: str) -> None:
        with self._lock:
            if any(site.selection is not None and site.op_name == op_name for site in self._sites):
                self._refuse_if_frozen("the registry")
                self._redecide(op_name)

    # -- failures

    def failed(self, impl: OpImpl, dtype: str, error: Exception) -> None:
        """Count a failure that was passed on; rewrite the operator's sites when it is watched or demoted from now on."""
        with self._lock:
            if self.failures.failed(impl, dtype, error):
                logger.error(
                    "operator %s: %s is demoted for %s after repeated failures (last: %s: %s); others serve it from now on",
                    impl.op_name, impl.impl_id, dtype, type(error).__name__, error,
                )  # fmt: skip
            self._recompose(impl)

    def succeeded(self, impl: OpImpl) -> None:
        """A watched implementation served a call: take the watch out."""
        with self._lock:
            self.failures.succeeded(impl)
            self._recompose(impl)

    def _recompose(self, impl: OpImpl) -> None:
        for site in (*self._sites, *self._context_sites.values()):
            if site.op_name == impl.op_name and site.impl is impl:
                site.fn = compose(site, impl)
                if self._contexts_open and self._shared.get(site.op_name) is site:
                    site.fn = self._in_context(site, site.fn)

    # -- call sites

    def sites(self) -> list[Site]:
        """Every live site, in a stable order."""
        return sorted(self._sites, key=lambda site: (site.op_name, site.label))

    def shared_site(self, op_name: str) -> Site:
        """The site behind ``call_op`` and the typed function of one operator; raises UnknownOperatorError."""
        site = self._shared.get(op_name)
        if site is None:
            if op_name not in self._registry.op_names():
                raise UnknownOperatorError(
                    f"unknown operator {op_name!r}; {did_you_mean(op_name, self._registry.op_names())}"
                )
            with self._lock:
                site = self._shared.setdefault(op_name, Site(self, op_name, label="call_op"))
                self._sites.add(site)
        return site

    def bind(self, op_name: str, obj: Any = None, *, label: str = "", device_type: str | None = None) -> Site:
        """Decide for one layer, once. Keep the returned site (the manager holds it weakly) and call ``site.fn``.

        Raises:
            UnknownOperatorError: no such operator.
            SelectionError: nothing may run under the policy, with every candidate's reason.
        """
        if op_name not in self._registry.op_names():
            raise UnknownOperatorError(
                f"unknown operator {op_name!r}; {did_you_mean(op_name, self._registry.op_names())}"
            )
        site = Site(self, op_name, obj, label, device_type)
        self.decide(site)
        self._sites.add(site)
        return site

    def resolve_op(self, op_name: str) -> Callable[..., Any]:
        """A function with the operator's standard signature, decided now, that follows later changes of the policy."""
        return guarded(self.bind(op_name, label="resolve_op"), self.registry.spec(op_name))

    def call_op(self, op_name: str, *args: Any, **kwargs: Any) -> Any:
        """Call one operator by name: ``call_op("rms_norm", obj, x, residual)``. Declared limits are always checked."""
        site = self._shared.get(op_name) or self.shared_site(op_name)
        try:
            return site.fn(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  (the guard: judged in recover)
            return site.recover(error, *args, **kwargs)

    # -- contexts

    @contextlib.contextmanager
    def policy_context(self, policy: SelectionPolicy) -> Iterator[None]:
        """Use another policy for ``call_op`` and typed functions inside the block, in this thread or task only.

        Bound sites (framework layers, a held ``resolve_op``) ignore contexts. Entering one in a compiled region is an error.
        """
        if facts.tracing_or_capturing():
            raise FrozenSelectionError("a policy context cannot be entered inside a compiled or captured region")
        self._count_context(+1)
        token = self._context.set(policy)
        try:
            yield
        finally:
            self._context.reset(token)
            self._count_context(-1)

    def _count_context(self, step: int) -> None:
        with self._lock:
            before, self._contexts_open = self._contexts_open, self._contexts_open + step
            if bool(before) != bool(self._contexts_open):
                for site in self._shared.values():
                    if site.selection is not None:
                        assert site.impl is not None  # a decided site has a choice
                        plain = compose(site, site.impl)
                        site.fn = self._in_context(site, plain) if self._contexts_open else plain

    def _in_context(self, site: Site, plain: Callable[..., Any]) -> Callable[..., Any]:
        def in_context(*args: Any, **kwargs: Any) -> Any:
            policy = self._context.get()
            if policy is None:
                return plain(*args, **kwargs)
            return self._context_call(site.op_name, policy, args, kwargs)

        return in_context

    def _context_call(self, op_name: str, policy: SelectionPolicy, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        key = (op_name, policy)
        site = self._context_sites.get(key)
        if site is None:
            site = Site(self, op_name, label="policy_context")
            self.decide(site, policy)
            self._context_sites[key] = site
        try:
            return site.fn(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  (the guard: judged in recover)
            return site.recover(error, *args, **kwargs)
