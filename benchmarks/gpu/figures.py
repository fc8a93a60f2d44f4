# SPDX-License-Identifier: Apache-2.0
"""What is asked of engines that serve, and what becomes of the times: rates, intervals, the table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Job to engine to tokens a second, one value a round.
Rates = dict[str, dict[str, list[float]]]

# Student's t for a two-sided 95 % interval, by degrees of freedom; beyond them that of the last.
_STUDENT: tuple[float, ...] = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_STUDENT += (2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086)


@dataclass(frozen=True)
class Job:
    """One thing to serve.

    Args:
        requests: at once.
        prompt: tokens of each.
        new: tokens to generate for each.
        counted: which of the two makes the rate, ``"prompt"`` or ``"new"``.
        repeat: so many times one after the other, added up, where once is too short to measure.
        turns: that an engine has in a round, the fastest of which counts, where the host's other work is in the way.
        every: in every so manieth round only, where one round says enough.
    """

    requests: int
    prompt: int
    new: int
    counted: str
    repeat: int = 1
    every: int = 1
    turns: int = 1

    @property
    def tokens(self) -> int:
        """Those that make the rate."""
        return self.requests * self.repeat * (self.new if self.counted == "new" else self.prompt)

    def message(self) -> dict[str, int]:
        """As an engine script takes it."""
        return {"requests": self.requests, "prompt": self.prompt, "new": self.new, "repeat": self.repeat}


JOBS = {
    "decode, 64 requests": Job(64, 128, 128, "new"),
    "decode, 1 request": Job(1, 128, 128, "new", repeat=2),
    "prefill, 16 x 4096": Job(16, 4096, 1, "prompt", every=2),
}
#: The host is the limit there, and what else it does comes and goes within seconds: short jobs in short turns, so that every
#: engine of a round has its chance at the same quiet moments.
EAGER_JOBS = {
    "decode, 64 requests": Job(64, 16, 16, "new", turns=5),
    "decode, 1 request": Job(1, 16, 16, "new", turns=5),
    "prefill, 16 x 4096": Job(16, 4096, 1, "prompt", every=5),
}


def interval(ratios: list[float]) -> tuple[float, float]:
    """Mean and half of its 95 % interval by Student's t; the half is not a number for a single value."""
    if len(ratios) < 2:
        return statistics.mean(ratios), float("nan")
    factor = _STUDENT[min(len(ratios) - 1, len(_STUDENT)) - 1]
    return statistics.mean(ratios), factor * statistics.stdev(ratios) / len(ratios) ** 0.5


def ratios(rates: Mapping[str, Mapping[str, list[float]]]) -> dict[str, dict[str, tuple[float, float]]]:
    """Job to engine to the interval of its ratio to the first engine in the same round."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for job, by_engine in rates.items():
        base = next(iter(by_engine.values()), [])
        found[job] = {
            name: interval([ours / native for ours, native in zip(values, base, strict=True)])
            for name, values in list(by_engine.items())[1:]
            if values
        }
    return found


def rows(rates: Rates) -> list[str]:
    """A group's Markdown table: medians, and for all but the first engine the ratio to that one."""
    lines = [f"| engine | {' | '.join(rates)} |", "|---|" + "---:|" * len(rates)]
    compared = ratios(rates)
    for name in next(iter(rates.values())):
        cells = []
        for job, by_engine in rates.items():
            values = by_engine[name]
            cell = f"{statistics.median(values):,.0f}" if values else "-"
            if name in compared[job]:
                mean, half = compared[job][name]
                cell += f" ({mean:.3f} ± {half:.3f})"
            cells.append(cell)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


#: How the name of a second engine that is as the first one begins: it shows what a measurement cannot tell apart.
AGAIN = "native again"


def below(rates: Rates) -> list[str]:
    """Where an engine's whole interval is below the first engine, and below that of ``AGAIN`` where there is one."""
    found = []
    for job, by_engine in ratios(rates).items():
        least = min([1.0, *(mean - half for name, (mean, half) in by_engine.items() if name.startswith(AGAIN))])
        found += [
            f"{job}, {name}: {mean:.3f} ± {half:.3f}" for name, (mean, half) in by_engine.items() if mean + half < least
        ]
    return found


def short_name(engine: str) -> str:
    """An engine's name without that of its group."""
    return engine.partition(",")[0]


def base_of(rates: Rates) -> str:
    """What the first engine is, with which the others are compared: where the framework itself died it is another."""
    return next((short_name(name) for by_engine in rates.values() for name in by_engine), "nothing")


def table(result: Mapping[str, Any]) -> str:
    """The rates of all groups as Markdown, with what the engines' layers ran."""
    lines = [f"# {result.get('title', 'SGLang end to end')}, {result['date']}", "", f"`{result['command']}`", ""]
    lines += [result["setting"], ""]
    if result.get("stolen"):
        lines += [f"The host gave {result['stolen']:.1%} of the time of this machine's CPUs to others meanwhile.", ""]
    if result.get("versions"):
        lines += [", ".join(f"{name} {version}" for name, version in result["versions"].items()) + ".", ""]
    for group, rates in result["groups"].items():
        if not any(rates.values()):
            lines += [f"{group}: no engine is left.", ""]
            continue
        rounds = " or ".join(map(str, sorted({len(v) for by_engine in rates.values() for v in by_engine.values()})))
        lines += [f"{group}, {rounds} rounds:", "", *rows(rates), ""]
        low, base = below(rates), base_of(rates)
        again = base != AGAIN and any(name.startswith(AGAIN) for by_engine in rates.values() for name in by_engine)
        spread = f" and its spread against {AGAIN}" if again else ""
        lines += [f"Whole interval below {base}{spread}: " + ("; ".join(low) if low else "none") + ".", ""]
        once = [job for job, found in ratios(rates).items() if any(math.isnan(half) for _, half in found.values())]
        if once:
            lines += [f"Of a single round, so without an interval and not judged: {'; '.join(once)}.", ""]
        lines += [
            f"Tokens a second, medians; in brackets the mean ratio to {base} of the same round, 95 % interval.",
            "",
        ]
    for name, why in result.get("failed", {}).items():
        lines += [f"{name} is missing, {why.removeprefix(f'{name}: ')}", ""]
    return "\n".join([*lines, *layers(result)])


def layers(result: Mapping[str, Any]) -> list[str]:
    """What the engines' layers ran, by which policy file, and where that is not what it says, in lines of Markdown."""
    lines = [f"Not as the policy says: {problem}" for problem in result.get("problems", ())]
    for name, choices in result["choices"].items():
        policy = result.get("policies", {}).get(name)
        lines += [f"Layers of {name}{f' by {policy}' if policy else ''}:", "", "```", *choices, "```", ""]
    return lines
