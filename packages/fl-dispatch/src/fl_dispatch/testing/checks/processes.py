# SPDX-License-Identifier: Apache-2.0
"""``processes``: works in a spawned process, and in a fork that precedes device initialisation.

Engines start their workers either way. One spawned process serves the checks of all of a vendor's implementations.
"""

from __future__ import annotations

import functools
import multiprocessing
import pickle
from collections.abc import Iterator
from functools import partial
from typing import Any

from fl_dispatch.testing.calls import copied, run
from fl_dispatch.testing.case import Case, CheckFailed, Figures, NotApplicable, Target
from fl_dispatch.testing.child import TIMEOUT, calls, first_call, spawned
from fl_dispatch.testing.judge import Worst, compare

_HINT = "whatever a process has of its own (threads, handles, device contexts) has to be made where operators run"
_MEANINGS = {
    "spawn": "works in a spawned process",
    "fork": "works in a fork made after the vendor was loaded and before the device was used",
    "trace": "its first call in a process may be one that torch.compile traces",
}


def cases(target: Target) -> Iterator[Case]:
    """Two, and one more of what torch.compile may look into."""
    for how, meaning in _MEANINGS.items():
        if how == "trace" and not target.impl.traceable:
            continue
        yield Case("processes", meaning, partial(_check, target, how), how, target)


@functools.cache
def _answers(vendor: str, device: str, seed: int) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=spawned, args=(there, vendor, device, seed), daemon=True)
    process.start()
    there.close()
    try:
        if not here.poll(TIMEOUT):
            text = f"it hung: no answer in {TIMEOUT:.0f} s"
            return dict.fromkeys(_MEANINGS, text)
        answers: dict[str, Any] = pickle.loads(here.recv_bytes())
    except EOFError:
        process.join(10)
        text = f"the process ended with exit code {process.exitcode} and no answer"
        return dict.fromkeys(_MEANINGS, text)
    finally:
        here.close()
        process.join(10)
        if process.is_alive():
            process.kill()
    return answers


def _check(target: Target, how: str) -> Figures:
    if not target.dtypes:
        raise NotApplicable("it declares no dtype that the operator has tolerances for")
    answers = _answers(target.vendor, target.device, target.seed)
    if how not in answers:
        raise NotApplicable("this system has no fork")
    found = answers[how]
    if how == "trace" and first_call(target) is None:
        raise NotApplicable("it takes none of the kit's calls of ordinary sizes")
    results = found if isinstance(found, str) else found.get(target.name, "it was not registered there")
    if isinstance(results, str):
        first, _, rest = results.partition("\n")
        hint = _HINT
        if how == "trace":
            hint = "load and look up what it needs in its availability probe, or declare traceable=False"
        raise CheckFailed(f"after {how}: {first}", details={**({"trace": rest} if rest else {}), "hint": hint})
    worst = Worst()
    made = [first_call(target)] if how == "trace" else calls(target)
    for (dtype, sample), there in zip(filter(None, made), results, strict=True):
        here = tuple(result.cpu() for result in run(target, copied(sample)[0], dtype))
        compare(target.spec, dtype, sample, there, worst, want=here)
    return {"calls": worst.calls}
