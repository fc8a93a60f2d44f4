# SPDX-License-Identifier: Apache-2.0
"""``SiteTable``: every call site of one manager; bound ones are held weakly."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from fl_dispatch import ops
from fl_dispatch.site import Site
from fl_dispatch.types import OpImpl

if TYPE_CHECKING:
    from fl_dispatch.manager import OpManager


class SiteTable:
    """The sites of one manager.

    Args:
        manager: whose sites these are.
    """

    def __init__(self, manager: OpManager) -> None:
        self._manager = manager
        # Its own, because reports look at the sites while the manager's lock is held for a slow decision.
        self._lock = threading.Lock()
        self._bound: weakref.WeakSet[Site] = weakref.WeakSet()
        #: The sites behind ``call_op`` and the typed functions, decided or not. Those of the standard operators are
        #: there from the start: creating one is nothing that torch.compile can trace.
        self.shared = {name: Site(manager, name, label="call_op") for name in ops.STANDARD_OPERATORS}

    def add(self, site: Site) -> None:
        """Keep a bound site up to date from now on."""
        with self._lock:
            self._bound.add(site)

    def share(self, op_name: str) -> Site:
        """The shared site of an operator, created when it is one beyond the standard ones."""
        with self._lock:
            return self.shared.setdefault(op_name, Site(self._manager, op_name, label="call_op"))

    def decided(self, op_name: str | None = None) -> list[Site]:
        """The sites that have decided, of one operator or of all."""
        with self._lock:
            sites = (*self.shared.values(), *self._bound)
        return [site for site in sites if site.selection is not None and op_name in (None, site.op_name)]

    def running(self, impl: OpImpl) -> list[Site]:
        """The sites where one implementation is in effect."""
        return [leaf for site in self.decided(impl.op_name) for leaf in site.leaves() if leaf.impl is impl]
