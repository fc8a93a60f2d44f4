# SPDX-License-Identifier: Apache-2.0
"""From figures to orders: which implementation for which number of tokens. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

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

#: What the noise of a busy host makes of a time in the middle of a measurement, seen on an H200: half as much again.
MOST_NOISE = 1.5

#: Orders by the number of tokens up to which they hold, with ``more`` last; or one order for all.
Orders = Mapping[int | str, list[str]] | list[str]


class _Counted(NamedTuple):
    """Microseconds as they are compared, how far they vary, and whether they are more than the host's."""

    us: float
    spread: float
    by_device: bool


def _total(forms: Mapping[str, _Counted]) -> tuple[float, float]:
    """Of all forms of an operator."""
    return sum(one.us for one in forms.values()), sum(one.spread for one in forms.values())


@dataclass(frozen=True)
class _Bucket:
    """A number of tokens: its order, and what counts of each implementation that is able of all forms."""

    tokens: int
    order: list[str]
    able: Mapping[str, Mapping[str, _Counted]]


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


def counted(figure: Figure, purpose: str, on_host: bool) -> _Counted | None:
    """``cost`` as it is compared: in eager mode on a device with ``NATIVE_SHARE`` and ``HOST_VARIES``."""
    if figure.host_us is None:
        return None
    host, spread = figure.host_us, figure.host_spread_us
    if purpose != "graph" and not on_host:
        host *= NATIVE_SHARE if figure.impl_id == IMPL_ID else 1.0
        spread = HOST_VARIES * host
    measured = cost(replace(figure, host_us=host, host_spread_us=spread), purpose)
    return None if measured is None else _Counted(*measured, by_device=measured[0] > host)


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
    fused = purpose == "graph" and any(figure.fused for figure in chosen if figure.impl_id == IMPL_ID)
    buckets: list[_Bucket] = []
    for tokens in sorted({figure.tokens for figure in chosen}):
        forms: dict[str, dict[str, _Counted]] = {}
        for figure in chosen:
            one = counted(figure, purpose, on_host)
            if figure.tokens == tokens and one is not None:
                forms.setdefault(figure.impl_id, {})[figure.workload] = one
        able = {impl_id: parts for impl_id, parts in forms.items() if len(parts) == len(workloads)}
        if able:
            order = _order(able, preference)
            order = _moved(order, IMPL_ID) if fused and IMPL_ID in able else order
            buckets.append(_Bucket(tokens, order, able))
    firsts = [bucket.order[0] for bucket in buckets]
    if purpose != "graph" and not on_host:
        firsts = _settled(buckets)
    # A bucket has the order of the most tokens in it.
    ends = [
        (bucket.tokens, _moved(bucket.order, first))
        for bucket, first, later in itertools.zip_longest(buckets, firsts, firsts[1:])
        if first != later
    ]
    if len(ends) < 2:
        return ends[0][1] if ends else []
    *bounded, (_, last) = ends
    return {**dict(bounded), "more": last}


def _order(able: Mapping[str, Mapping[str, _Counted]], preference: Sequence[str]) -> list[str]:
    """``ranked`` by the sums of an operator's forms, but first is nothing that the framework's own is as good as in one of them.

    Args:
        able: implementation id to form to what counts.
        preference: ids in the policy's order.
    """
    costs = {impl_id: _total(parts) for impl_id, parts in able.items()}
    order, own = ranked(costs, preference), able.get(IMPL_ID)
    if own is None:
        return order
    no_better = {
        impl_id
        for impl_id, parts in able.items()
        for form, one in parts.items()
        if ranked({IMPL_ID: own[form][:2], impl_id: one[:2]}, preference)[0] != impl_id
    }
    others = {impl_id: us for impl_id, us in costs.items() if impl_id not in no_better}
    return _moved(order, ranked(others, preference)[0])


def _settled(buckets: Sequence[_Bucket]) -> list[str]:
    """The first of each bucket; where the host is the bound, and it does the same for any number of tokens, what is first for one
    number alone, between two that agree on another, is the noise of the host, and the other one is.

    Not where it would take a place from the framework's own method, or is more than ``MOST_NOISE`` slower.
    """
    firsts = [bucket.order[0] for bucket in buckets]
    settled = list(firsts)
    for place in range(1, len(buckets) - 1):
        bucket, first, other = buckets[place], firsts[place], firsts[place - 1]
        if other != firsts[place + 1] or other not in bucket.able:
            continue
        theirs, ours = bucket.able[other], bucket.able[first]
        before = bucket.order[: bucket.order.index(other)]
        if IMPL_ID in before or any(one.by_device for one in (*theirs.values(), *ours.values())):
            continue
        if _total(theirs)[0] <= MOST_NOISE * _total(ours)[0]:
            settled[place] = other
    return settled


def _moved(order: list[str], first: str) -> list[str]:
    return [first, *(impl_id for impl_id in order if impl_id != first)]
