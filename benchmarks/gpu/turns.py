# SPDX-License-Identifier: Apache-2.0
"""``measure``: engines that take turns, one running at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from engines import SETTLE_SECONDS, Engine, EngineError
from figures import JOBS, Job, Rates


def measure(
    engines: list[Engine],
    rounds: int,
    jobs: Mapping[str, Job] = JOBS,
    seconds: float = math.inf,
    after_round: Callable[[Rates], None] = lambda rates: None,
    failed: dict[str, str] | None = None,
    every_turn: Rates | None = None,
    warmed_up: Callable[[list[Engine]], None] = lambda engines: None,
) -> Rates:
    """Tokens a second by job and engine, in every round; the order of the engines alternates from turn to turn.

    Args:
        engines: those of a group. One that dies is taken out of the list and of the rates, and noted in ``failed``.
        rounds: at most.
        jobs: what they serve.
        seconds: the round that passes them is the last.
        after_round: called with the rates so far.
        failed: engine to reason; without it an engine that dies is an error.
        every_turn: takes the rate of each turn as well, of jobs that have several in a round.
        warmed_up: called once, between warming up and the first turn, while all of them are paused: idle ones poll.
    """
    rates: Rates = {job: {engine.name: [] for engine in engines} for job in jobs}

    def attempt(action: Callable[[Engine, Job], float | None], engine: Engine, job: Job) -> float | None:
        """What it gives; None where the engine died, which then is dropped."""
        try:
            return action(engine, job)
        except EngineError as error:
            drop(engine, error)
            return None

    def alone(engine: Engine, job: Job) -> float:
        """Tokens a second."""
        engine.resume()
        time.sleep(SETTLE_SECONDS)
        engine.ask(job.message())
        rate = job.tokens / engine.seconds()
        engine.pause()
        return rate

    def drop(engine: Engine, error: EngineError) -> None:
        if failed is None:
            raise error
        print(error, flush=True)
        failed[engine.name] = error.reason
        engines.remove(engine)
        for by_engine in rates.values():
            by_engine.pop(engine.name, None)
        engine.stop()

    for job in jobs.values():  # all of them at once: only to have everything compiled
        for engine in list(engines):
            attempt(lambda engine, job: engine.ask({**job.message(), "repeat": 1}), engine, job)
        for engine in list(engines):
            attempt(lambda engine, job: engine.seconds(), engine, job)
    for engine in engines:
        engine.pause()
    warmed_up(engines)
    started = time.monotonic()
    for number in range(rounds):
        for name, job in jobs.items():
            if number % job.every:
                continue
            best: dict[str, float] = {}
            for turn in range(job.turns):
                forward = (number // job.every + turn) % 2 == 0
                for engine in list(engines if forward else engines[::-1]):
                    rate = attempt(alone, engine, job)
                    if rate is None:
                        continue
                    best[engine.name] = max(rate, best.get(engine.name, rate))
                    if every_turn is not None and job.turns > 1:
                        every_turn.setdefault(name, {}).setdefault(engine.name, []).append(round(rate, 2))
            for engine in engines:
                rates[name][engine.name].append(best[engine.name])
        if not engines:
            break
        after_round(rates)
        if time.monotonic() - started > seconds:
            break
    for engine in engines:
        engine.resume()
    return rates
