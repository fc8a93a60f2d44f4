# SPDX-License-Identifier: Apache-2.0
"""The conversation between an engine's process and the one that measures: a JSON line asks, a line answers.

    {"requests": 64, "prompt": 128, "new": 128, "repeat": 1}    SECONDS 1.234
    {"requests": 64, "prompt": 128, "new": 128, "trace": true}  SECONDS 2.345
    {"score": [[1, 2, 3], ...], "new": 32}                      SCORES [{"input": [...], ...}, ...]

The first asks for the time of ``repeat`` calls on fresh random prompts, the second has them profiled, the third asks for the
log-probabilities of given prompts and of what is generated greedily after them. READY comes first, once.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

#: ``generate(prompts, new)`` gives the number of new tokens of each prompt.
Generate = Callable[[list[list[int]], int], list[int]]
#: ``score(prompts, new)`` gives for each prompt ``input`` (log-probabilities of its tokens from the second on), ``input_top``
#: (the most probable token at each of those positions), ``output_ids`` and ``output`` (generated tokens, their log-probabilities).
Score = Callable[[list[list[int]], int], list[dict[str, Any]]]
#: What is generated inside of it is profiled; at its end the trace is written.
Traced = Callable[[], contextlib.AbstractContextManager[None]]


def begin() -> TextIO:
    """Before the framework is imported: have the kernel kill this process when the one that measures is gone, so that no GPU stays
    occupied, and keep the standard output for the answers: what the framework prints there goes to the log.
    """
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def answer_jobs(
    answers: TextIO, vocabulary: int, generate: Generate, score: Score, traced: Traced = contextlib.nullcontext
) -> None:
    """Serve until the input ends.

    Args:
        answers: from ``begin``.
        vocabulary: token ids of random prompts are below it.
        generate: serves random prompts.
        score: serves given ones.
        traced: of the framework's profiler.
    """
    numbers = random.Random(7)
    print("READY", file=answers, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        if "score" in job:
            print("SCORES " + json.dumps(score(job["score"], job["new"])), file=answers, flush=True)
            continue
        seconds, lengths = 0.0, set()
        for _ in range(job.get("repeat", 1)):
            prompts = [
                [numbers.randrange(1000, vocabulary) for _ in range(job["prompt"])] for _ in range(job["requests"])
            ]
            with traced() if job.get("trace") else contextlib.nullcontext():
                started = time.perf_counter()
                lengths |= set(generate(prompts, job["new"]))
                seconds += time.perf_counter() - started
        print(f"SECONDS {seconds:.5f}" if lengths == {job["new"]} else f"WRONG {lengths}", file=answers, flush=True)
