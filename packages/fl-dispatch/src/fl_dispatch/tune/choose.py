# SPDX-License-Identifier: Apache-2.0
"""From figures to orders: which implementation for which number of tokens. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Mapping, Sequence

from fl_dispatch.native import IMPL_ID
from fl_dispatch.tune.measure import Figure

#: What is closer to the best than this fraction is as good: another run might order them otherwise.
TIE = 0.03
#: On a busy machine times vary by more than implementations differ; beyond this fraction the faster one counts anyway.
WIDEST_TIE = 0.15
#: Where a device does the work, the times of the host vary by so much, each of two: what surrounds a call counts. On an H200 an
#: activation that was 14 % faster than SGLang's by itself made no faster server.
HOST_VARIES = WIDEST_TIE / 2
#: There this much of the host's time counts of the framework's own method. With the tie it gives way only to what takes less than
#: two thirds of it: what another costs a served model beyond its own time cannot be seen outside of one. In vLLM on an H200
#: sgl_kernel's norms, a quarter faster here than vLLM's, took longer there, and made what follows 6 microseconds a call longer.
NATIVE_SHARE = (1 + WIDEST_TIE) * 2 / 3

#: Orders by the number of tokens up to which they hold, with ``more`` last; or one order for all.
Orders = Mapping[int | str, list[str]] | list[str]


def cost(figure: Figure, purpose: str) -> tuple[float, float] | None:
    """Microseconds as measured, and how far they vary; None where there are none.

    Args:
        figure: one implementation on one workload.
        purpose: ``graph``: in a replayed graph the host does nothing, so device time; ``eager``: the slower of host and device.
    """
    if figure.host_us is None:
        return None
    device = figure.device_us
    if purpose == "graph":
        return None if device is None else (device, figure.device_spread_us)
    if device is not None and device > figure.host_us:
        return device, figure.device_spread_us
    return figure.host_us, figure.host_spread_us


def counted(figure: Figure, purpose: str, on_host: bool) -> tuple[float, float] | None:
    """``cost`` as it is compared: in eager mode on a device with ``NATIVE_SHARE`` and ``HOST_VARIES``."""
    if purpose == "graph" or figure.host_us is None or on_host:
        return cost(figure, purpose)
    host = figure.host_us * (NATIVE_SHARE if figure.impl_id == IMPL_ID else 1.0)
    if figure.device_us is not None and figure.device_us > host:
        return figure.device_us, figure.device_spread_us
    return host, HOST_VARIES * host


def ranked(costs: Mapping[str, tuple[float, float]], preference: Sequence[str]) -> list[str]:
    """Implementation ids, best first. Of those as good as the best it is the one that the policy prefers.

    Args:
        costs: id to microseconds and their spread.
        preference: ids in the policy's order.
    """
    if not costs:
        return []
    places = {impl_id: place for place, impl_id in enumerate(preference)}
    by_cost = sorted(costs, key=lambda impl_id: (costs[impl_id][0], places.get(impl_id, len(places)), impl_id))
    best, spread = costs[by_cost[0]]
    tied = [i for i in by_cost if costs[i][0] - best <= max(TIE * best, min(spread + costs[i][1], WIDEST_TIE * best))]
    first = min(tied, key=lambda impl_id: (places.get(impl_id, len(places)), costs[impl_id][0]))
    return _moved(by_cost, first)


def orders(
    figures: Iterable[Figure],
    op_name: str,
    dtype: str,
    purpose: str,
    preference: Sequence[str],
    *,
    on_host: bool = False,
) -> Orders:
    """The order of one operator, by the number of tokens where that matters; empty when nothing could be measured.

    Where an operator has several workloads (a norm with and without residual) their times are added up, and an implementation
    has to be able of all; the framework's own method gives way only to what is faster in each, since a model calls one of them
    more often than the other. In graphs it is first wherever their compiler fuses it with what is around it: what it takes there
    cannot be measured alone. With ``on_host`` the host itself computes, and its times are compared as they are. A bucket ends at
    the last number of tokens that was measured with the same first choice.
    """
    chosen = [f for f in figures if f.op_name == op_name and f.dtype == dtype]
    workloads = {figure.workload for figure in chosen}
    fused = purpose == "graph" and any(figure.fused for figure in chosen)
    found: list[tuple[int, list[str]]] = []
    on_device: set[tuple[int, str]] = set()
    for tokens in sorted({figure.tokens for figure in chosen}):
        forms: dict[str, dict[str, tuple[float, float]]] = {}
        for figure in chosen:
            one = counted(figure, purpose, on_host)
            if figure.tokens == tokens and one is not None:
                forms.setdefault(figure.impl_id, {})[figure.workload] = one
                if figure.device_us is not None and figure.device_us > (figure.host_us or 0.0):
                    on_device.add((tokens, figure.impl_id))
        able = {impl_id: parts for impl_id, parts in forms.items() if len(parts) == len(workloads)}
        if able:
            order = _order(able, preference)
            found.append((tokens, _moved(order, IMPL_ID) if fused and IMPL_ID in able else order))
    if purpose != "graph" and not on_host:
        _settle(found, on_device)
    # A bucket has the order of the most tokens in it.
    ends = [each for each, later in itertools.zip_longest(found, found[1:]) if not later or later[1][0] != each[1][0]]
    if len(ends) < 2:
        return ends[0][1] if ends else []
    *bounded, (_, last) = ends
    return {**dict(bounded), "more": last}


def _order(able: Mapping[str, Mapping[str, tuple[float, float]]], preference: Sequence[str]) -> list[str]:
    """``ranked`` by the sums of an operator's forms, with nothing before the framework's own that is not faster in each of them.

    Args:
        able: implementation id to form to microseconds and their spread.
        preference: ids in the policy's order.
    """
    costs = {
        impl_id: (sum(us for us, _ in parts.values()), sum(spread for _, spread in parts.values()))
        for impl_id, parts in able.items()
    }
    order, own = ranked(costs, preference), able.get(IMPL_ID, {})
    if len(own) < 2:
        return order
    slower = {
        impl_id
        for impl_id, parts in able.items()
        if any(ranked({IMPL_ID: own[form], impl_id: one}, preference)[0] != impl_id for form, one in parts.items())
    }
    others = {impl_id: us for impl_id, us in costs.items() if impl_id not in slower}
    return _moved(order, ranked(others, preference)[0])


def _settle(found: list[tuple[int, list[str]]], on_device: Container[tuple[int, str]]) -> None:
    """Where the host is the bound it does the same for any number of tokens: what is first for one number alone, between two that
    agree on another, is no choice but the noise of the host, and changed to theirs.

    Args:
        found: numbers of tokens and their orders.
        on_device: numbers of tokens and implementations whose bound is the device.
    """
    for place in range(1, len(found) - 1):
        (_, before), (tokens, order), (_, after) = found[place - 1 : place + 2]
        measured = before[0] in order and (tokens, before[0]) not in on_device and (tokens, order[0]) not in on_device
        if before[0] == after[0] and measured:
            found[place] = (tokens, _moved(order, before[0]))


def _moved(order: list[str], first: str) -> list[str]:
    return [first, *(impl_id for impl_id in order if impl_id != first)]
