# SPDX-License-Identifier: Apache-2.0
"""What a site is to run, for each range of token counts where that matters, and putting it there with its counts kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fl_dispatch.callables import by_tokens, compose
from fl_dispatch.errors import ConfigError
from fl_dispatch.policy import SelectionPolicy
from fl_dispatch.selection import Selection
from fl_dispatch.site import Site
from fl_dispatch.types import OpImpl

#: Upper bound of the number of tokens (None: more than the last) and the decision for it.
Plan = tuple[tuple[int | None, Selection], ...]


def make_plan(site: Site, policy: SelectionPolicy, select: Callable[[SelectionPolicy], Selection]) -> Plan:
    """The decisions for a site by upper bound of the number of tokens; one with the bound None where that is no matter.

    Where the site is traced and a bucket wants the framework's own method, that serves them all: the operator that decides by
    tokens inside of a graph does not have its layer, and what the framework compiles of it is fused with what is around it.

    Raises:
        ConfigError: there is no number of tokens to decide by.
    """
    buckets = policy.buckets(site.op_name) or ((None, policy),)
    plan = tuple((bound, select(each)) for bound, each in buckets)
    if len({selection.usable for _, selection in plan}) == 1:
        return plan[-1:]
    if len(site.manager.registry.spec(site.op_name).parameters) < 2:
        raise ConfigError(f"by_tokens: operator {site.op_name!r} has no input whose tokens could be counted")
    if site.native is not None and site.is_traced:
        native = [selection for _, selection in plan if selection.chosen is site.native]
        if native:
            return ((None, _for_all_tokens(native[-1])),)
    return plan


def _for_all_tokens(selection: Selection) -> Selection:
    said = tuple(
        replace(one, reason=f"{one.reason}; for every number of tokens, as the layer is compiled")
        if one.impl is selection.chosen
        else one
        for one in selection.candidates
    )
    return replace(selection, candidates=said)


class SiteWriter:
    """Points sites at what was decided.

    Args:
        written: called with each site whose callable was set.
    """

    def __init__(self, written: Callable[[Site], None]) -> None:
        self._written = written

    def install(self, site: Site, plan: Plan) -> None:
        """Let a site follow a plan."""
        if len(plan) > 1:
            self._install_parts(site, plan)
            return
        for _, part in site.parts:
            part.hand_over(site)
        site.parts, site.compiled = (), None
        ((_, selection),) = plan
        impl = selection.require()
        before = site.impl
        if before is not None and before is not impl and site.calls:
            site.past_calls[before.impl_id] = site.past_calls.get(before.impl_id, 0) + site.calls
            site.calls = 0
        site.selection = selection
        self.point(site, impl)

    def _install_parts(self, site: Site, plan: Plan) -> None:
        present = dict(site.parts)
        parts = []
        for bound, selection in plan:
            part = present.get(bound)
            if part is None:
                label = f"{site.label}, {'more' if bound is None else f'up to {bound}'} tokens"
                part = Site(
                    site.manager,
                    site.op_name,
                    site.obj,
                    label,
                    site.device_type,
                    site.dtype,
                    site.traced,
                    site.native,
                )
            self.install(part, ((None, selection),))
            parts.append((bound, part))
        kept = {id(part) for _, part in parts}
        for former in (*(part for _, part in site.parts), site):
            if id(former) not in kept:
                former.hand_over(parts[-1][1])
        site.parts, site.compiled, site.selection = tuple(parts), None, plan[-1][1]
        site.fn = site.plain = by_tokens(site)
        self._written(site)

    def point(self, site: Site, impl: OpImpl) -> None:
        """Set the callable of a site that runs one implementation."""
        site.fn = site.plain = compose(site, impl)
        self._written(site)
