# SPDX-License-Identifier: Apache-2.0
"""The search by halves for the operators that have to be exchanged to make a result good. Pure: verdicts are asked for."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence


class Verdict(enum.Enum):
    """What one run says about the result."""

    GOOD = "good"
    BAD = "bad"
    UNJUDGED = "not judged"


class Outcome(enum.Enum):
    """How a search ended."""

    FOUND = "found"
    NOTHING_TO_FIND = "nothing to find"  # good with nothing exchanged
    ELSEWHERE = "elsewhere"  # bad with everything exchanged
    UNSETTLED = "unsettled"  # runs that were not judged stand in the way
    FLAKY = "flaky"  # one set of operators was judged good and bad


#: The verdict on the result with exactly these operators exchanged for what is known to be good.
Ask = Callable[[frozenset[str]], Verdict]


class Search:
    """Finds a smallest set of operators whose exchange makes the result good.

    Exchanging more operators is taken to never make a good result bad. Then each guilty operator is found with about
    log2(n) runs, in a list of which the first part is exchanged: with the operators up to the guilty one the result is
    good, with those before it bad. It is kept exchanged, and the search goes on among those before it until the guilty
    ones alone are enough. No set is asked for twice but the last one, once more: a verdict that changes is chance.

    ``guilty`` and ``suspects`` are right at any time, also when ``ask`` raises: operators (or groups of them that could
    not be told apart) that are known to be guilty, and those of which at least one more is.
    """

    def __init__(self, operators: Sequence[str], ask: Ask) -> None:
        self._operators = tuple(operators)
        self._ask = ask
        self._known: dict[frozenset[str], Verdict] = {}
        self.guilty: list[tuple[str, ...]] = []
        self.suspects: tuple[str, ...] = ()

    @property
    def exchanged(self) -> frozenset[str]:
        """All operators of ``guilty``."""
        return frozenset(op for group in self.guilty for op in group)

    def run(self) -> Outcome:
        """Search; ``guilty`` has the result, in the order of ``operators``."""
        as_set = self._verdict(frozenset())
        if as_set is not Verdict.BAD:
            return Outcome.NOTHING_TO_FIND if as_set is Verdict.GOOD else Outcome.UNSETTLED
        all_exchanged = self._verdict(frozenset(self._operators))
        if all_exchanged is not Verdict.GOOD:
            return Outcome.ELSEWHERE if all_exchanged is Verdict.BAD else Outcome.UNSETTLED
        rest = self._operators
        while (verdict := self._verdict(self.exchanged)) is Verdict.BAD:
            rest = self._next_guilty(rest)
        if verdict is Verdict.UNJUDGED:
            self.suspects = rest
            return Outcome.UNSETTLED
        again = self._ask(self.exchanged)
        if again is not verdict:
            return Outcome.FLAKY if again is Verdict.BAD else Outcome.UNSETTLED
        return Outcome.FOUND if all(len(group) == 1 for group in self.guilty) else Outcome.UNSETTLED

    def _next_guilty(self, rest: tuple[str, ...]) -> tuple[str, ...]:
        """Find one more among ``rest``, whose exchange beside ``guilty`` is enough; returns those before it."""
        bad, good = 0, len(rest)  # so many of the first exchanged: the most that are not enough, the fewest that are
        self.suspects = rest
        while good - bad > 1:
            middle = (bad + good) // 2
            # Where the middle is not judged, its neighbours may be.
            for count in sorted(range(bad + 1, good), key=lambda count: abs(count - middle)):
                verdict = self._verdict(self.exchanged | frozenset(rest[:count]))
                if verdict is not Verdict.UNJUDGED:
                    break
            else:
                break
            bad, good = (bad, count) if verdict is Verdict.GOOD else (count, good)
            self.suspects = rest[bad:good]
        self.guilty.insert(0, rest[bad:good])
        self.suspects = ()
        return rest[:bad]

    def _verdict(self, exchanged: frozenset[str]) -> Verdict:
        if exchanged not in self._known:
            self._known[exchanged] = self._ask(exchanged)
        return self._known[exchanged]
