# SPDX-License-Identifier: Apache-2.0
"""From figures to orders: which implementation for which number of tokens. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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
    return [first, *(impl_id for impl_id in by_cost if impl_id != first)]


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
    has to be able of all. With ``on_host`` the host itself computes, and its times are compared as they are. A bucket ends at the
    last number of tokens that was measured with the same first choice.
    """
    chosen = [f for f in figures if f.op_name == op_name and f.dtype == dtype]
    workloads = {figure.workload for figure in chosen}
    found: list[tuple[int, list[str]]] = []
    for tokens in sorted({figure.tokens for figure in chosen}):
        sums: dict[str, list[tuple[float, float]]] = {}
        for figure in chosen:
            one = counted(figure, purpose, on_host)
            if figure.tokens == tokens and one is not None:
                sums.setdefault(figure.impl_id, []).append(one)
        costs = {
            impl_id: (sum(us for us, _ in parts), sum(spread for _, spread in parts))
            for impl_id, parts in sums.items()
            if len(parts) == len(workloads)
        }
        order = ranked(costs, preference)
        if order and found and found[-1][1][0] == order[0]:
            found[-1] = (tokens, order)
        elif order:
            found.append((tokens, order))
    if len(found) < 2:
        return found[0][1] if found else []
    *bounded, (_, last) = found
    return {**dict(bounded), "more": last}
