# SPDX-License-Identifier: Apache-2.0
"""What ``fl-dispatch bisect`` says: a line for each run, and the result in plain words."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_dispatch.adapters import ADAPTERS, CORE_PREFIX
from fl_dispatch.bisect.candidates import Candidates
from fl_dispatch.bisect.logs import end_of
from fl_dispatch.bisect.search import Outcome, Search, Verdict
from fl_dispatch.cli.text import wrapped
from fl_dispatch.config import Config


@dataclass(frozen=True)
class Run:
    """One run: the orders that were set beside what is set anyway, what came out (None: neither good nor bad) and why."""

    number: int
    orders: Mapping[str, str]
    verdict: str | None
    why: str
    seconds: float
    log: str


@dataclass(frozen=True)
class Result:
    """How the search ended; ``avoiding`` is the value of ``variable`` that avoids the fault.

    ``stopped``: why less is known of what was found than was asked for (``found``, ``tried``); empty otherwise.
    """

    outcome: Outcome
    search: Search
    good: str
    variable: str
    avoiding: str
    found: Mapping[str, Candidates]
    tried: Mapping[str, Mapping[str, Verdict]]
    stopped: str

    def as_dict(self) -> dict[str, Any]:
        """A plain form."""
        settled = self.outcome is Outcome.FOUND
        return {
            "outcome": self.outcome.value,
            "stopped": self.stopped,
            "good": self.good,
            "guilty": sorted(self.search.exchanged) if settled else [],
            "suspects": [list(group) for group in self.search.guilty] if not settled else [],
            "avoid_with": {self.variable: self.avoiding} if settled else {},
            "operators": {
                op_name: {
                    "chosen": each.chosen,
                    "others": each.others,
                    "problem": each.problem,
                    "tried": {token: judged.value for token, judged in self.tried.get(op_name, {}).items()},
                }
                for op_name, each in self.found.items()
            },
        }

    def describe(self, runs: Sequence[Run], command: Sequence[str], config: Config, *, narrowed: bool) -> str:
        """The text for people; ``narrowed``: not all operators were looked at."""
        if self.outcome is Outcome.FOUND:
            return self._found(command, config.prefix)
        if self.outcome is Outcome.NOTHING_TO_FIND:
            return wrapped(
                "nothing to find: with the settings as they are the result is good. If it should be bad, check that "
                "the command is strict enough (a word that has to occur is not, all tokens are) and exits with another "
                f"status than 0 then; output: {runs[-1].log}"
            )
        if self.outcome is Outcome.ELSEWHERE:
            return "\n".join([*self._elsewhere(runs[-1], config, narrowed), _end_of(runs[-1])])
        if self.outcome is Outcome.FLAKY:
            return wrapped(
                f"not settled: {with_orders(runs[-1].orders)} the result was good once and is bad now (run "
                f"{runs[-1].number}), so it depends on chance. Let the command give one answer for one setting: greedy "
                "sampling, a fixed seed, a limit with more room, or several tries of which most count"
            )
        lines = ["not settled: runs that could not be judged are in the way. " + known(self.search, self.good)]
        last = next(run for run in reversed(runs) if run.verdict == Verdict.UNJUDGED.value)
        lines.append(f"The last of them was run {last.number} ({last.why}); see {last.log}")
        return "\n".join([*map(wrapped, lines), _end_of(last)])

    def _found(self, command: Sequence[str], prefix: str) -> str:
        guilty = sorted(self.search.exchanged)
        if len(guilty) == 1:
            text = f"{guilty[0]} is to blame: exchanging it is enough, with it alone on {self.good} the result is good, twice."
        else:
            text = f"{_joined(guilty)} are to blame: exchanging them is enough, with all of them on {self.good} "
            text += "the result is good, twice, and it is bad in every run without one of them."
        lines = [wrapped(text)]
        for op_name in guilty:
            lines.append(wrapped(self._implementations(op_name), "  ", "    "))
            tried = self.tried.get(op_name, {})
            lines += [wrapped(f"{token} in its place: {judged.value}", "    ") for token, judged in tried.items()]
        if self.stopped:
            lines.append(wrapped(f"more was not looked at: {self.stopped}", "  ", "    "))
        lines += ["", "To avoid the fault:", f"  export {self.variable}={shlex.quote(self.avoiding)}"]
        checks = [
            f"  pytest --fl-vendor {vendor} --fl-operator {op_name}"
            for op_name in guilty
            for vendor in (self.found[op_name].vendors if op_name in self.found else ())
            if vendor != self.good
        ]
        if checks:
            lines += ["", "To see what is wrong with it, its conformance checks:", *checks]
        if prefix != CORE_PREFIX:  # a framework's workers write the report
            lines += ["", "Each eager call against float64, into the report:"]
            lines.append(f"  {prefix}COMPARE=1 {prefix}REPORT=report.json {shlex.join(command)}")
        return "\n".join(lines)

    def _implementations(self, op_name: str) -> str:
        found = self.found.get(op_name, Candidates(problem=self.stopped))
        if found.problem:
            return f"what runs {op_name} is not known: {found.problem}"
        text = f"by the policy {op_name} runs {' or '.join(found.chosen) or 'nothing'}"
        if found.chosen == (self.good.removeprefix("impl:"),):
            text += " here, so what the command runs is on another device, or has other packages installed"
        untried = [token for token in found.others if token.removeprefix("impl:") != self.good]
        if untried and op_name not in self.tried:
            text += f"; --try-others would also try {', '.join(untried)}"
        return text

    def _elsewhere(self, last: Run, config: Config, narrowed: bool) -> list[str]:
        prefix = config.prefix
        lines = [
            wrapped(
                f"not these operators: the result is bad with all of them on {self.good} too (run {last.number}, "
                f"{last.why}; {last.log}). What to look at next:"
            )
        ]
        hints = ["the end of the output below: a command that cannot run at all looks the same"]
        if prefix == CORE_PREFIX:
            hints.append(f"{prefix}* is not read by SGLang and vLLM; for them give --prefix {' or '.join(ADAPTERS)}")
        if narrowed:
            hints.append("the other operators: leave --ops out")
        hints.append(f"`{prefix}OOT_WHITELIST=none`: bad with that, too, is not a matter of fl-dispatch")
        if config.flagos_aten:
            hints.append(
                f"`{prefix}FLAGOS_ATEN=0`: FlagGems replaces PyTorch's own operators, which are not looked at here"
            )
        if self.good != "native" and prefix != CORE_PREFIX:  # there it is refused
            hints.append("`--good native`: the framework's own methods instead of those of " + self.good)
        return lines + [wrapped(hint, "  - ") for hint in hints]


def tell(line: str, end: str = "\n") -> None:
    """Progress, at once."""
    print(line, end=end, file=sys.stderr, flush=True)


def with_orders(orders: Mapping[str, str]) -> str:
    """Which operators are on what, in words."""
    by_order: dict[str, list[str]] = {}
    for op_name, order in orders.items():
        by_order.setdefault(order, []).append(op_name)
    if not by_order:
        return "as set"
    return "with " + " and ".join(f"{', '.join(names)} on {order}" for order, names in by_order.items())


def known(search: Search, good: str) -> str:
    """What the search knows at any time, in a sentence."""
    single = [group[0] for group in search.guilty if len(group) == 1]
    parts = [f"{_joined(single)} {'is' if len(single) == 1 else 'are'} to blame"] if single else []
    open_ = [group for group in search.guilty if len(group) > 1]
    parts += [f"to blame is at least one of {', '.join(group)}, which are good together on {good}" for group in open_]
    if search.suspects:
        parts.append(f"{'and ' if parts else ''}at least one of {', '.join(search.suspects)} is to blame")
    return f"Known so far: {'; '.join(parts)}." if parts else "Nothing is known yet."


def _joined(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _end_of(run: Run) -> str:
    return "\n".join([f"\nthe end of {run.log}:", *(f"  {line}" for line in end_of(Path(run.log)))])
