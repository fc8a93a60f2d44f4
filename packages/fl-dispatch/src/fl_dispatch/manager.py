# SPDX-License-Identifier: Apache-2.0
"""``OpManager``: the one stateful module. It keeps every call site pointing at the right callable."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from fl_dispatch import facts
from fl_dispatch.callables import guarded
from fl_dispatch.comparison import Comparison
from fl_dispatch.contexts import PolicyContexts
from fl_dispatch.discovery import VendorRecord, discover
from fl_dispatch.errors import FrozenSelectionError
from fl_dispatch.ledger import FailureLedger
from fl_dispatch.limits import layer_remark, layer_verdict
from fl_dispatch.native import ABSENT, IMPL_ID, native_impl
from fl_dispatch.policy import SelectionPolicy
from fl_dispatch.policy_names import check_names, check_operators
from fl_dispatch.registry import OpRegistry
from fl_dispatch.selection import DeviceFacts, Selection, select
from fl_dispatch.site import Site
from fl_dispatch.site_plan import Plan, SiteWriter, make_plan
from fl_dispatch.site_table import SiteTable
from fl_dispatch.types import BackendImplKind, OpImpl

logger = logging.getLogger("fl_dispatch")


class OpManager:
    """Decides once per call site, says why, and gets out of the way.

    Args:
        registry: the implementations; when omitted, a new one that is filled with the built-in backends and every
            installed vendor when the first decision is made.
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
        self.lock = threading.RLock()
        self._registry = OpRegistry() if registry is None else registry
        self._discovered = registry is not None
        self._policy = policy
        self._policy_checked = False
        self._policy_source = policy_source
        self._device_type = device_type
        self._captured = self._compiled = False
        self._writer = SiteWriter(self._written)
        self._sites = SiteTable(self)
        self._shared = self._sites.shared
        self._contexts = PolicyContexts(self, self._shared)
        self._availability = facts.Availability()
        self._frozen: str | None = None
        self._counts_calls = False
        self.comparison: Comparison | None = None
        self.vendors: tuple[VendorRecord, ...] = ()
        self.failures = FailureLedger()
        self._registry.on_change(self._registered)

    # -- state

    @property
    def registry(self) -> OpRegistry:
        """The registry, filled on first use; raises ConfigError when the policy then names what does not exist."""
        if not self._discovered:
            with self.lock:
                if not self._discovered:
                    policy = self.policy
                    self._discovered = True  # before the vendors' code runs, which may ask for the registry
                    self.vendors = discover(self._registry, policy)
                    check_names(policy, self._registry, self.vendors)
        return self._registry

    @property
    def policy(self) -> SelectionPolicy:
        """The policy in force."""
        if self._policy is None:
            self._policy = self._policy_source()
        return self._policy

    @property
    def device_type(self) -> str:
        """Where operators run."""
        return self._device_type or facts.default_device_type()

    @property
    def compiled(self) -> bool:
        """Whether bound sites may be traced by ``torch.compile``."""
        return self._compiled

    @property
    def captured(self) -> bool:
        """Whether device graphs are captured in this process."""
        return self._captured

    @property
    def counts_calls(self) -> bool:
        """Whether calls of layers are counted."""
        return self._counts_calls

    def watch(self, *, calls: bool = False, numbers: bool = False) -> None:
        """Look at calls of layers from now on, for a report; nobody else pays for it.

        Args:
            calls: count them, which costs each as much as a Python call does.
            numbers: judge each eager one against float64 (``comparison``), to find a wrong number. That is slow.
        """
        with self.lock:
            if calls or numbers:
                self._refuse_if_frozen("what is watched")
                self._counts_calls |= calls
                self.comparison = self.comparison or (Comparison() if numbers else None)
                self._redecide()

    def name_layers(self, named: Iterable[tuple[str, Any]]) -> None:
        """Tell what the layers of a model are called there (``model.named_modules()``), for messages about single layers."""
        if self.comparison is not None:
            self.comparison.name_layers(named)

    def configure(
        self,
        *,
        policy: SelectionPolicy | None = None,
        device_type: str | None = None,
        captured: bool | None = None,
        compiled: bool | None = None,
    ) -> None:
        """Change the policy or the device; every site follows at once, and demotions are forgotten.

        Args:
            policy: the user's wishes; None: as before.
            device_type: where operators run; None: as before.
            captured: whether device graphs are captured in this process, so that only implementations that declare
                ``capture_safe`` are chosen; None: as before (at first, no).
            compiled: whether ``torch.compile`` may trace bound sites in this process, so that only implementations that
                can be in a graph are chosen for them; None: as before (at first, no).

        Raises:
            UnknownOperatorError: ``policy.per_op`` names an operator that does not exist.
            ConfigError: an ``impl:ID`` token names an implementation that does not exist.
            SelectionError: a site that is in use would have nothing to run. Then nothing was changed.
            FrozenSelectionError: a graph was captured or compiled with the present selection.
        """
        with self.lock:
            self._refuse_if_frozen("the policy")
            before = (self._policy, self._device_type, self._captured, self._compiled)
            if policy is not None:
                check_operators(policy, self._registry.op_names())
                if self._discovered:
                    self.vendors = discover(self._registry, policy, already=self.vendors)
                    check_names(policy, self._registry, self.vendors)
                self._policy, self._policy_checked = policy, self._discovered
            self._device_type = device_type or self._device_type
            self._captured = self._captured if captured is None else captured
            self._compiled = self._compiled if compiled is None else compiled
            streaks = self.failures.reset()
            try:
                self._redecide()
            except BaseException:
                self._policy, self._device_type, self._captured, self._compiled = before
                self.failures.restore(streaks)
                raise

    def reset(self) -> None:
        """Forget demotions and availability, and decide every site anew."""
        with self.lock:
            self._refuse_if_frozen("the selection")
            self.failures.reset()
            self._availability.forget()
            self._redecide()

    def freeze(self, why: str) -> None:
        """From now on refuse to change the selection: ``why`` names the graph that was captured or compiled with it."""
        self._frozen = why

    def unfreeze(self) -> None:
        """Allow changes again, after the graphs are gone."""
        self._frozen = None

    def _refuse_if_frozen(self, what: str) -> None:
        if self._frozen is not None:
            raise FrozenSelectionError(
                f"{what} cannot change any more: {self._frozen} holds the present selection and would go on "
                "running it; set it before start-up, or drop the graphs and call unfreeze()"
            )

    # -- deciding

    def select(
        self,
        op_name: str,
        *,
        obj: Any = None,
        facts_: DeviceFacts | None = None,
        policy: SelectionPolicy | None = None,
        native: OpImpl | None = None,
        tokens: int | None = None,
        traced: bool = False,
    ) -> Selection:
        """The decision for one operator, with a reason for every candidate; nothing is called or changed.

        Where the policy decides by the number of tokens it is that for ``tokens``; None: for more than its last bound.
        ``traced``: only what can be in a compiled graph that ``obj`` is part of.
        """
        registry = self.registry
        impls = registry.get(op_name)
        spec = registry.spec(op_name)
        facts_ = facts_ or facts.facts_for(self._device_type, captured=self._captured)
        policy = (policy or self.policy).for_tokens(op_name, tokens)
        rejected: dict[str, str] = {}
        remarks: dict[str, str] = {}
        if any(token.kind is BackendImplKind.NATIVE for token in policy.order(op_name)):
            impls = (*impls, native or native_impl(op_name))
            if native is None:
                rejected[IMPL_ID] = ABSENT
        for impl in impls:
            if impl.vendor and policy.vendor_verdict(impl.vendor):
                continue
            reason = self._availability.reason_against(impl)
            if reason is None and obj is not None:
                reason = layer_verdict(impl, obj, spec.field_defaults)
            if reason is None and traced:
                from fl_dispatch.compiled import compile_refusal  # imports torch

                by_tokens = op_name in self.policy.by_tokens and impl.kind is not BackendImplKind.NATIVE
                reason = compile_refusal(impl, spec, obj, by_tokens)
            demoted = self.failures.demoted_dtypes(impl)
            if reason is None and facts_.dtype in demoted:
                reason = f"demoted for {facts_.dtype}: it failed repeatedly; a policy change or reset() lifts this"
            if reason is not None:
                rejected[impl.impl_id] = reason
                continue
            notes = [] if obj is None else [layer_remark(impl, obj, spec.field_defaults)]
            notes += [f"demoted for {', '.join(sorted(demoted))}"] if demoted else []
            if any(notes):
                remarks[impl.impl_id] = "; ".join(filter(None, notes))
        return select(op_name, impls, policy, facts_, rejected, remarks)

    def decide(self, site: Site, policy: SelectionPolicy | None = None) -> None:
        """Point a site at the implementation the policy chooses; raises SelectionError when none may run."""
        with self.lock:
            registry = self.registry  # discovers the vendors, on first use
            if not self._policy_checked:
                check_names(self.policy, self._registry, self.vendors)
                self._policy_checked = registry is not None
            self._writer.install(site, self._plan(site, policy or self.policy))

    def _plan(self, site: Site, policy: SelectionPolicy) -> Plan:
        where = facts.facts_for(site.device_type or self._device_type, site.dtype, self._captured)

        def selection(policy: SelectionPolicy) -> Selection:
            found = self.select(
                site.op_name, obj=site.obj, facts_=where, policy=policy, native=site.native, traced=site.is_traced
            )
            found.require()
            return found

        return make_plan(site, policy, selection)

    def _written(self, site: Site) -> None:
        if self._shared.get(site.op_name) is site:
            self._contexts.point(site)

    def _redecide(self, op_name: str | None = None) -> None:
        """Decide every decided site anew; where one of them would have nothing to run, none is changed."""
        for site, plan in [(site, self._plan(site, self.policy)) for site in self._sites.decided(op_name)]:
            self._writer.install(site, plan)
        self._contexts.forget()

    def _registered(self, op_name: str) -> None:
        with self.lock:
            if self._sites.decided(op_name):
                self._refuse_if_frozen("the registry")
                self._redecide(op_name)
            self._contexts.forget()

    # -- failures

    def failed(self, impl: OpImpl, dtype: str | None, error: Exception) -> None:
        """Count a failure that was passed on; rewrite the sites when it is watched or demoted from now on."""
        if dtype is None:
            return
        with self.lock:
            demoted = self.failures.failed(impl, dtype, error)
            if demoted:
                logger.error(
                    "operator %s: %s is demoted for %s after repeated failures (last: %s: %s); "
                    "others serve it from now on",
                    *(impl.op_name, impl.impl_id, dtype, type(error).__name__, error),
                )
            for site in self._sites_running(impl):
                if demoted and site.dtype == dtype:
                    self.decide(site, site.selection.policy if site.selection is not None else None)
                else:
                    self._writer.point(site, impl)
            if demoted:
                # Also where it is a later candidate, or that of a part: graphs made from now on go without it.
                for site in self._sites.decided(impl.op_name):
                    site.compiled = None

    def succeeded(self, impl: OpImpl, dtype: str | None) -> None:
        """A watched implementation served a call: take the watch out."""
        with self.lock:
            if self.failures.succeeded(impl, dtype):
                for site in self._sites_running(impl):
                    self._writer.point(site, impl)

    def _sites_running(self, impl: OpImpl) -> list[Site]:
        leaves = (leaf for site in self._contexts.sites() for leaf in site.leaves())
        return [*self._sites.running(impl), *(leaf for leaf in leaves if leaf.impl is impl)]

    # -- call sites

    def sites(self) -> list[Site]:
        """Every site that has decided, in a stable order."""
        return sorted(self._sites.decided(), key=lambda site: (site.op_name, site.label))

    def shared_site(self, op_name: str) -> Site:
        """The site behind ``call_op`` and the typed function of one operator; raises UnknownOperatorError."""
        site = self._shared.get(op_name)
        if site is None:
            self._require_operator(op_name)
            with self.lock:
                site = self._sites.share(op_name)
                self._contexts.point(site)
        return site

    def _require_operator(self, op_name: str) -> None:
        # A vendor may define operators of its own, which are known once it was discovered.
        if op_name not in self._registry.op_names():
            self.registry.spec(op_name)

    def bind(
        self,
        op_name: str,
        obj: Any = None,
        *,
        label: str = "",
        device_type: str | None = None,
        dtype: str | None = None,
        traced: bool | None = None,
        native: Callable[..., Any] | None = None,
    ) -> Site:
        """Decide for one layer, once. Keep the returned site (the manager holds it weakly) and call ``site.fn``.

        Args:
            op_name: the operator.
            obj: the layer.
            label: what reports call it, for example the layer's class.
            device_type: where the layer runs, if that is certain; then no call is checked for it.
            dtype: name of the dtype of the layer's inputs, if that is certain; then no call is checked for it.
            traced: whether ``torch.compile`` may trace calls of this layer; None: as ``configure`` was told for all.
            native: the framework's own method with the operator's standard signature, the candidate of the token
                ``native``. Where ``site.is_native`` says that it was chosen, leave the layer to the framework: the
                site is not kept up to date.

        Raises:
            UnknownOperatorError: no such operator.
            SelectionError: nothing may run under the policy, with every candidate's reason.
        """
        self._require_operator(op_name)
        own = None if native is None else native_impl(op_name, native)
        site = Site(self, op_name, obj, label, device_type, dtype, traced, own)
        with self.lock:
            self.decide(site)
            if not site.is_native:
                self._sites.add(site)
        return site

    def resolve_op(self, op_name: str) -> Callable[..., Any]:
        """A function with the operator's standard signature, decided now, that follows later changes of the policy."""
        return guarded(self.bind(op_name, label="resolve_op"), self.registry.spec(op_name))

    def call_op(self, op_name: str, *args: Any, **kwargs: Any) -> Any:
        """Call one operator by name: ``call_op("rms_norm", obj, x, residual)``. Declared limits are always checked."""
        site = self._shared.get(op_name) or self.shared_site(op_name)
        fn = site.fn
        try:
            return fn(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  (the guard: judged in recover)
            return site.recover(error, *args, **kwargs)

    def policy_context(self, policy: SelectionPolicy) -> AbstractContextManager[None]:
        """Use another policy for ``call_op`` and typed functions inside the block, in this thread or task only.

        Bound sites (framework layers, a held ``resolve_op``) ignore contexts.

        Raises:
            FrozenSelectionError: inside a compiled or captured region.
            UnknownOperatorError, ConfigError: the policy names an operator or implementation that does not exist.
        """
        if facts.tracing_or_capturing():
            raise FrozenSelectionError("a policy context cannot be entered inside a compiled or captured region")
        check_operators(policy, self._registry.op_names())
        if self._discovered:
            check_names(policy, self._registry, self.vendors)
        return self._contexts.enter(policy)
