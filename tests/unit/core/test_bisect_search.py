# SPDX-License-Identifier: Apache-2.0
"""The search by halves: the right operators, with few runs, and what stands in the way is said."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import pytest

from fl_dispatch.bisect.search import Outcome, Search, Verdict

GOOD, BAD, UNJUDGED = Verdict.GOOD, Verdict.BAD, Verdict.UNJUDGED


class Asked:
    """Answers by a rule and remembers what was asked."""

    def __init__(self, rule: Callable[[frozenset[str]], Verdict]) -> None:
        self.rule = rule
        self.sets: list[frozenset[str]] = []

    def __call__(self, exchanged: frozenset[str]) -> Verdict:
        self.sets.append(exchanged)
        return self.rule(exchanged)


def needs(guilty: str) -> Callable[[frozenset[str]], Verdict]:
    """Good where all of these are exchanged."""
    return lambda exchanged: GOOD if set(guilty) <= exchanged else BAD


def cases() -> Iterator[tuple[str, str]]:
    for count in range(1, 7):
        operators = "abcdef"[:count]
        for size in range(1, count + 1):
            yield from ((operators, "".join(guilty)) for guilty in itertools.combinations(operators, size))


@pytest.mark.parametrize(("operators", "guilty"), list(cases()))
def test_exactly_the_guilty_are_found_and_no_set_is_asked_twice_but_the_last(operators: str, guilty: str) -> None:
    asked = Asked(needs(guilty))
    search = Search(operators, asked)
    assert search.run() is Outcome.FOUND
    assert search.guilty == [(one,) for one in guilty]
    assert search.exchanged == set(guilty)
    assert asked.sets[-1] == set(guilty)
    assert len(set(asked.sets)) == len(asked.sets) - 1
    assert len(asked.sets) <= 3 + len(guilty) * (math.ceil(math.log2(len(operators))) + 1)


def test_where_either_of_two_is_enough_one_is_found() -> None:
    search = Search("abcdef", lambda exchanged: GOOD if exchanged & {"b", "e"} else BAD)
    assert search.run() is Outcome.FOUND
    assert search.guilty == [("b",)]


@pytest.mark.parametrize(
    ("always", "outcome", "runs"),
    [(GOOD, Outcome.NOTHING_TO_FIND, 1), (UNJUDGED, Outcome.UNSETTLED, 1), (BAD, Outcome.ELSEWHERE, 2)],
)
def test_the_ends_are_judged_first(always: Verdict, outcome: Outcome, runs: int) -> None:
    asked = Asked(lambda exchanged: always)
    search = Search("abc", asked)
    assert search.run() is outcome
    assert (asked.sets, search.guilty) == ([frozenset(), frozenset("abc")][:runs], [])


def test_all_exchanged_has_to_be_judged() -> None:
    search = Search("abc", lambda exchanged: UNJUDGED if exchanged else BAD)
    assert search.run() is Outcome.UNSETTLED


def test_a_run_that_is_not_judged_is_gone_round() -> None:
    middle = frozenset("abc")
    asked = Asked(lambda exchanged: UNJUDGED if exchanged == middle else needs("e")(exchanged))
    search = Search("abcdef", asked)
    assert search.run() is Outcome.FOUND
    assert middle in asked.sets
    assert search.guilty == [("e",)]


def test_what_cannot_be_told_apart_is_given_as_a_group() -> None:
    def rule(exchanged: frozenset[str]) -> Verdict:
        # b and c exchanged one without the other: the command cannot run.
        return UNJUDGED if len(exchanged & {"b", "c"}) == 1 else needs("c")(exchanged)

    search = Search("abcd", rule)
    assert search.run() is Outcome.UNSETTLED
    assert search.guilty == [("b", "c")]


def test_guilty_ones_that_are_not_judged_alone_leave_it_open_whether_there_are_more() -> None:
    search = Search("abcd", lambda exchanged: UNJUDGED if exchanged == {"c"} else needs("c")(exchanged))
    assert search.run() is Outcome.UNSETTLED
    assert (search.guilty, search.suspects) == ([("c",)], ("a", "b"))


@pytest.mark.parametrize(("again", "outcome"), [(BAD, Outcome.FLAKY), (UNJUDGED, Outcome.UNSETTLED)])
def test_a_verdict_that_does_not_repeat_is_no_result(again: Verdict, outcome: Outcome) -> None:
    asked = Asked(lambda exchanged: again if asked.sets.count(frozenset("a")) > 1 else needs("a")(exchanged))
    assert Search("ab", asked).run() is outcome


def test_what_is_known_when_a_run_is_interrupted() -> None:
    def rule(exchanged: frozenset[str]) -> Verdict:
        if exchanged == set("ag"):
            raise KeyboardInterrupt
        return needs("bg")(exchanged)

    search = Search("abcdefgh", rule)
    with pytest.raises(KeyboardInterrupt):
        search.run()
    # g alone was not enough, with a, b and c it was.
    assert search.guilty == [("g",)]
    assert search.suspects == tuple("abc")


def test_an_interruption_of_the_last_run_leaves_nobody_suspect() -> None:
    def rule(exchanged: frozenset[str]) -> Verdict:
        if exchanged == set("b"):
            raise KeyboardInterrupt
        return GOOD if "b" in exchanged else BAD

    search = Search("abcd", rule)
    with pytest.raises(KeyboardInterrupt):
        search.run()
    assert search.guilty == [("b",)]
    assert search.suspects == ()
