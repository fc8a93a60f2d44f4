# SPDX-License-Identifier: Apache-2.0
"""Faults that show in another process only."""

from __future__ import annotations

import multiprocessing
import queue
import threading
from collections.abc import Callable
from typing import Any

_SECONDS = 1.0
_jobs: queue.Queue[tuple[Callable[[], Any], queue.Queue[Any]]] = queue.Queue()


def _serve() -> None:
    while True:
        job, answer = _jobs.get()
        answer.put(job())


threading.Thread(target=_serve, daemon=True).start()


def in_the_thread(job: Callable[[], Any]) -> Any:
    """Have the module's thread do it. A fork has no such thread, and nobody answers."""
    answer: queue.Queue[Any] = queue.Queue()
    _jobs.put((job, answer))
    try:
        return answer.get(timeout=_SECONDS)
    except queue.Empty:
        raise TimeoutError("the worker thread does not answer") from None


def require_main_process() -> None:
    """Raise in any process but the one that was started first."""
    if multiprocessing.parent_process() is not None:
        raise RuntimeError("context was created in another process")
