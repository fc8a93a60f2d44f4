# SPDX-License-Identifier: Apache-2.0
"""``PolicyContexts``: another policy for ``call_op`` and typed functions inside a ``with`` block.

Outside of every context shared sites run their plain callable, so contexts cost nothing. While one is open anywhere in
the process, each shared site looks at a ContextVar; the plain callable still serves threads and tasks without a
context.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fl_dispatch.errors import FrozenSelectionError
from fl_dispatch.facts import is_tracing
from fl_dispatch.policy import SelectionPolicy
from fl_dispatch.site import Site

if TYPE_CHECKING:
    from fl_dispatch.manager import OpManager


class PolicyContexts:
    """The open contexts of one manager and the sites that serve them.

    Args:
        manager: decides for those sites; its lock guards all of this.
        shared: the shared sites by operator.
    """

    def __init__(self, manager: OpManager, shared: Mapping[str, Site]) -> None:
        self._manager = manager
        self._shared = shared
        self._policy: contextvars.ContextVar[SelectionPolicy | None] = contextvars.ContextVar("fl_policy", default=None)
        self._open = 0
        self._sites: dict[tuple[str, SelectionPolicy], Site] = {}

    @contextlib.contextmanager
    def enter(self, policy: SelectionPolicy) -> Iterator[None]:
        """Open a context for this thread or task."""
        self._count(+1)
        try:
            token = self._policy.set(policy)
            try:
                yield
            finally:
                self._policy.reset(token)
        finally:
            self._count(-1)

    def _count(self, step: int) -> None:
        with self._manager.lock:
            before, self._open = self._open, self._open + step
            if bool(before) != bool(self._open):
                for site in self._shared.values():
                    self.point(site)

    def point(self, site: Site) -> None:
        """Set ``fn`` of a shared site: its plain callable, or while a context is open the one that looks."""
        site.fn = self._looking(site) if self._open else site.plain

    def _looking(self, site: Site) -> Callable[..., Any]:
        current = self._policy

        def in_context(*args: Any, **kwargs: Any) -> Any:
            if is_tracing():
                raise FrozenSelectionError(
                    f"{site.op_name} cannot be traced while a policy context is open, "
                    "because a graph would not follow it; compile outside of it, or use resolve_op or a bound layer"
                )
            policy = current.get()
            if policy is None:
                return site.plain(*args, **kwargs)
            return self._call(site.op_name, policy, args, kwargs)

        return in_context

    def _call(self, op_name: str, policy: SelectionPolicy, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        site = self._sites.get((op_name, policy))
        if site is None:
            site = Site(self._manager, op_name, label="policy_context")
            self._manager.decide(site, policy)
            self._sites[(op_name, policy)] = site
        try:
            return site.fn(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  (the guard: judged in recover)
            return site.recover(error, *args, **kwargs)

    def sites(self) -> tuple[Site, ...]:
        """The sites behind the policies seen so far."""
        return tuple(self._sites.values())

    def forget(self) -> None:
        """Decide anew for every context at its next call."""
        self._sites.clear()
