# SPDX-License-Identifier: Apache-2.0
"""``determinism``: the same bits for the same input, every time; ``threads``: also while another thread calls."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial

import torch

from fl_dispatch.ops.spec import Sample
from fl_dispatch.testing.calls import Results, copied, described, run, samples_for
from fl_dispatch.testing.case import Case, CheckFailed, Figures, NotApplicable, Target

_RUNS = 5
_CALLS_A_THREAD = 40
#: Seconds that both threads together may take. Longer is a hang.
_TIMEOUT = 120.0


def cases(target: Target) -> Iterator[Case]:
    """Determinism for each declared dtype, threads once."""
    for dtype in target.dtypes:
        meaning = "the same input gives the same bits every time"
        yield Case("determinism", meaning, partial(_repeat, target, dtype), dtype, target)
    yield Case("threads", "two threads do not disturb each other", partial(_threads, target), "", target)


def _some(target: Target, dtype: str) -> list[Sample]:
    """Ordinary calls, and the largest of a model's size."""
    found = list(samples_for(target, dtype))
    chosen = [sample for family, sample in found if family in ("ordinary", "interleaved", "odd_sizes")][:12]
    return chosen + [sample for family, sample in found if family == "model_sizes"][-2:]


def _equal(one: Results, other: Results) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
        for a, b in zip(one, other, strict=True)
    )


def _kept(results: Results) -> Results:
    # Copies: what an implementation returns may be memory that it uses again.
    return tuple(result.clone() for result in results)


def _repeat(target: Target, dtype: str) -> Figures:
    chosen = _some(target, dtype)
    if not chosen:
        raise NotApplicable("its declared limits refuse every ordinary call")
    for sample in chosen:
        first = _kept(run(target, copied(sample)[0], dtype))
        for number in range(2, _RUNS + 1):
            if not _equal(first, run(target, copied(sample)[0], dtype)):
                raise CheckFailed(f"call {number} with the same input gave other bits", described(sample, dtype))
    return {"inputs": len(chosen), "runs": _RUNS}


def _threads(target: Target) -> Figures:
    """Both make the same calls at the same time, in step, with other numbers."""
    dtype = next(iter(target.dtypes), "")
    inputs = [_some(dataclasses.replace(target, seed=target.seed + n), dtype) if dtype else [] for n in (0, 1)]
    if not all(inputs):
        raise NotApplicable("its declared limits refuse every ordinary call")
    right = [[_kept(run(target, copied(sample)[0], dtype)) for sample in own] for own in inputs]
    failures: list[CheckFailed] = []
    together = threading.Barrier(2)
    at: list[tuple[int, Sample | None]] = [(0, None), (0, None)]
    finished: set[int] = set()

    def work(mine: int) -> None:
        try:
            with torch.no_grad():
                for number in range(_CALLS_A_THREAD):
                    index = -1 - number % len(inputs[mine])
                    sample = inputs[mine][index]
                    at[mine] = number + 1, sample
                    given, _ = copied(sample)
                    together.wait(timeout=_TIMEOUT)
                    if not _equal(right[mine][index], run(target, given, dtype)):
                        raise CheckFailed(
                            f"call {number + 1} of a thread gave other bits than the same call alone",
                            described(sample, dtype),
                            {"hint": "look for state that calls share: scratch buffers, caches, the current stream"},
                        )
            finished.add(mine)
        except threading.BrokenBarrierError:
            return  # the other one has failed, or hangs
        except CheckFailed as error:
            failures.append(error)
            together.abort()
        except BaseException as error:  # noqa: BLE001  (a thread has no caller: what is not kept here is lost)
            failures.append(_failed_in_thread(error, at[mine], dtype))
            together.abort()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        # Daemons: one that hangs must not keep the process from ending.
        threads = [threading.Thread(target=work, args=(mine,), daemon=True) for mine in (0, 1)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + _TIMEOUT
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
    finally:
        sys.setswitchinterval(interval)
    if failures:
        raise failures[0]
    if len(finished) < len(threads):
        together.abort()
        # The other one waits for it, at a later call or at the same.
        number, hung = min((at[mine] for mine in (0, 1) if mine not in finished), key=lambda place: place[0])
        raise CheckFailed(
            f"hung: call {number} of a thread was still not back {_TIMEOUT:g} s after both threads had begun",
            described(hung, dtype) if hung else None,
            {"hint": "look for locks, queues and streams that only the main thread serves"},
        )
    return {"calls": 2 * _CALLS_A_THREAD}


def _failed_in_thread(error: BaseException, at: tuple[int, Sample | None], dtype: str) -> CheckFailed:
    number, sample = at
    failed = CheckFailed(
        f"call {number} of a thread failed with {type(error).__name__}: {error}",
        described(sample, dtype) if sample else None,
        {"hint": "the same call works in the main thread; engines call operators from threads of their own"},
    )
    failed.__cause__ = error
    return failed
