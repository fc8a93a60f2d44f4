# SPDX-License-Identifier: Apache-2.0
"""The kernels of a step of decoding in several engines: which differ, the table, and a sentence for each engine."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from figures import interval, layers
from steps import median_interval
from traces import Kernel, Measured, Step

#: Of a name in the table.
WIDTH = 72
_NOISE_WORDS = re.compile(r"^void |at::native::|\(anonymous namespace\)::|c10::|std::")


def shortened(name: str) -> str:
    """A kernel's name without its parameters and usual namespaces, and without the middle where it is still long."""
    text = _NOISE_WORDS.sub("", name)
    if text.endswith(")"):  # a C++ signature: back to the bracket that opens its parameters
        depth = 0
        for place in range(len(text) - 1, 0, -1):
            depth += {")": 1, "(": -1}.get(text[place], 0)
            if depth == 0:
                text = text[:place].rstrip() if text[place - 1] != " " else text
                break
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 25]}...{text[-22:]}"


def labels(names: Iterable[str]) -> dict[str, str]:
    """Whole name to what the table calls it; names that are the same once shortened are numbered."""
    found: dict[str, str] = {}
    for name in names:
        label = shortened(name).replace("|", "/")
        same = sum(other.partition(" #")[0] == label for other in found.values())
        found[name] = f"{label} #{same + 1}" if same else label
    return found


def differs(kernel: Kernel | None, base: Kernel | None) -> bool:
    """Whether a kernel has another number of calls than in the base, or a time that noise, where it is known, does not explain."""
    if kernel is None or base is None:
        return kernel is not base
    noise = noise_of(kernel.time, base.time)
    return kernel.calls != base.calls or (noise is not None and abs(kernel.time.us - base.time.us) > noise)


def noise_of(*times: Measured) -> float | None:
    """Of a difference or a sum; None where that of one of them is not known."""
    return None if any(one.noise is None for one in times) else sum(one.noise or 0.0 for one in times)


def with_noise(one: Measured) -> str:
    """A duration with what it varies by."""
    return f"{one.us:,.1f}" + ("" if one.noise is None else f" ± {one.noise:,.1f}")


def difference(name: str, steps: Mapping[str, Step]) -> float:
    """The largest difference in microseconds of a step between the first engine and another one."""
    base, *others = (step.kernels[name].time.us if name in step.kernels else 0.0 for step in steps.values())
    return max((abs(us - base) for us in others), default=0.0)


def rows(steps: Mapping[str, Step]) -> list[str]:
    """The rows of kernels: those that differ, by the largest difference, and the others in one."""
    base, *others = steps.values()
    names = {name for step in steps.values() for name in step.kernels}
    apart = {name for name in names if any(differs(step.kernels.get(name), base.kernels.get(name)) for step in others)}
    order = sorted(apart, key=lambda name: (-difference(name, steps), name))
    called = labels(order)
    lines = []
    for name in order:
        cells = [_cell(step.kernels.get(name)) for step in steps.values()]
        lines.append(f"| {called[name]} | {' | '.join(cells)} | {difference(name, steps):,.1f} |")
    rest = sorted(names - apart)
    if rest:
        cells = []
        for step in steps.values():
            kernels = [step.kernels[name] for name in rest]
            calls, us = sum(kernel.calls for kernel in kernels), sum(kernel.time.us for kernel in kernels)
            cells.append(f"{calls:g} calls, {us:,.1f}")
        lines.append(f"| other ({len(rest)} kernels) | {' | '.join(cells)} | |")
    return lines


def _cell(kernel: Kernel | None) -> str:
    if kernel is None:
        return "-"
    return f"{kernel.calls:.4g} x {kernel.time.us / kernel.calls:,.2f}"


def composition(step: Step, base: Step) -> dict[str, tuple[int, float, float]]:
    """What the difference of the sums is made of: part to number of kernels, calls and microseconds a step more than the base."""
    parts: dict[str, list[tuple[float, float]]] = {"new": [], "gone": [], "renumbered": [], "same": []}
    for name in {*step.kernels, *base.kernels}:
        ours, theirs = step.kernels.get(name), base.kernels.get(name)
        if theirs is None or ours is None:
            kind = "new" if theirs is None else "gone"
        else:
            kind = "same" if ours.calls == theirs.calls else "renumbered"
        calls = (ours.calls if ours else 0.0) - (theirs.calls if theirs else 0.0)
        us = (ours.time.us if ours else 0.0) - (theirs.time.us if theirs else 0.0)
        parts[kind].append((calls, us))
    return {
        kind: (len(found), sum(calls for calls, _ in found), sum(us for _, us in found))
        for kind, found in parts.items()
    }


def sentence(name: str, base_name: str, step: Step, base: Step) -> str:
    """Whether an engine's kernels are the same list as the base's, and what the difference of the sums is made of."""
    more = step.total.us - base.total.us
    noise = noise_of(step.total, base.total)
    parts = composition(step, base)
    if step.listed() == base.listed():
        same = f"the same list of kernels as {base_name}'s, name and number"
    else:
        same = f"not the same list of kernels as {base_name}'s"
    texts = {
        "new": f"kernels that {base_name} lacks",
        "gone": "kernels that it lacks",
        "renumbered": "kernels in another number",
        "same": "the same kernels",
    }
    said = [
        f"{us:+,.1f} us in {texts[kind]} ({count}{f', {calls:+g} calls' if calls else ''})"
        for kind, (count, calls, us) in parts.items()
        if count
    ]
    told = "unknown" if noise is None else f"{noise:,.1f}"
    return f"{name}: {same}; device time {more:+,.1f} us a step (noise {told}), made of {', '.join(said)}."


def not_whole(steps: Mapping[str, Step]) -> list[str]:
    """Kernels that a step does not call a whole number of times."""
    return [
        f"{engine}: {shortened(name)} {kernel.calls:.4g}"
        for engine, step in steps.items()
        for name, kernel in step.kernels.items()
        if not kernel.whole
    ]


def section(steps: Mapping[str, Step], clock: Mapping[str, Sequence[float]]) -> list[str]:
    """The table of one number of requests with its sentences.

    Args:
        steps: by engine; the first is what the others are compared with.
        clock: engine to microseconds of a step in every round, without the profiler.
    """
    base_name, base = next(iter(steps.items()))
    wall = {name: median_interval(clock[name]) for name in steps}
    lines = [f"| kernel | {' | '.join(steps)} | largest difference, us |", f"|---|{'---:|' * (len(steps) + 1)}"]
    lines += rows(steps)
    total, busy = [step.total for step in steps.values()], [step.busy for step in steps.values()]
    lines += [
        _summed("sum of device time, us", map(with_noise, total)),
        _summed("device busy, us", map(with_noise, busy)),
        _summed("clock, us", ["{:,.1f} ({:,.1f} to {:,.1f})".format(*wall[name]) for name in steps]),
        _summed("speed", ["{:.3f} ± {:.3f}".format(*speed(clock[name], clock[base_name])) for name in steps]),
        _summed("idle, us", [f"{wall[name][0] - step.busy.us:,.1f}" for name, step in steps.items()]),
        "",
    ]
    lines += [f"- {sentence(name, base_name, step, base)}" for name, step in list(steps.items())[1:]]
    broken = not_whole(steps)
    lines += ["- Not a whole number of calls a step: " + ("; ".join(broken) if broken else "none") + ".", ""]
    return lines


def speed(clock: Sequence[float], base: Sequence[float]) -> tuple[float, float]:
    """Mean and half of the 95 % interval of the ratio of an engine's speed to the base's, of the rounds that both have."""
    found = [theirs / ours for ours, theirs in zip(clock, base, strict=False) if ours > 0 and theirs > 0]
    return interval(found) if found else (math.nan, math.nan)


def _summed(what: str, cells: Iterable[str]) -> str:
    return f"| {what} | {' | '.join(cells)} | |"


def page(result: Mapping[str, Any], steps: Mapping[int, Mapping[str, Step]]) -> str:
    """The result as Markdown."""
    lines = [f"# {result['title']}, {result['date']}", "", f"`{result['command']}`", "", result["setting"], ""]
    lines += [", ".join(f"{name} {version}" for name, version in result["versions"].items()) + ".", ""]
    single = result["repeats"] < 2
    repeated = "once" if single else f"medians; ± is half of the range of {result['repeats']} repetitions"
    differing = "" if single else " and differs by less"
    lines += [
        f"Cells: calls a step x microseconds a call. By difference of jobs of {' and '.join(map(str, result['tokens']))} tokens, "
        f"{repeated}, and `other` holds what is called as often everywhere{differing}. `device busy`: "
        "what overlaps counts once. `clock`: the same difference without the profiler, median with its 95 % interval by order "
        "statistics; `speed`: the mean ratio to the first engine's of the same round with its 95 % interval. `idle`: clock less "
        "device busy, the host's part and the gaps between kernels.",
        "",
    ]
    for requests, by_engine in steps.items():
        lines += [f"Decoding, {requests} request{'s' if requests > 1 else ''}:", ""]
        lines += section(by_engine, result["clock_us"][str(requests)]) if by_engine else ["no engine is left.", ""]
    lines += [f"{name} is missing, {why.removeprefix(f'{name}: ')}" for name, why in result["failed"].items()]
    return "\n".join([*lines, "", *layers(result)])
