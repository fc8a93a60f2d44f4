# SPDX-License-Identifier: Apache-2.0
"""``Engine``: an engine script in a process group of its own, which can be started beside others, stopped and continued."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

from placement import Placement, pin, spent

HERE = Path(__file__).resolve().parent
START_SECONDS = 240.0
ANSWER_SECONDS = 180.0
#: Between continuing an engine and its job: its idle loops run again, and those of the others are at rest.
SETTLE_SECONDS = 0.05
#: Of every engine. NCCL's monitor takes a process that was stopped for one that hangs.
VARIABLES = {"PYTHONHASHSEED": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}
#: Of vLLM's engines: its sampler and version check want packages that are not there, and its default sends statistics.
VLLM_VARIABLES = {
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "FLASHINFER_DISABLE_VERSION_CHECK": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


def framework_variables(framework: str) -> dict[str, str]:
    """Of an engine of that framework, ``"sglang"`` or ``"vllm"``: engines that start together would write the same compiled
    graphs and FlagGems' database to the same files, so each has a folder of its own for them.
    """
    folder = tempfile.mkdtemp(prefix=f"{framework}-cache-")
    variables = {"SGLANG_CACHE_DIR": folder} if framework == "sglang" else {**VLLM_VARIABLES, "VLLM_CACHE_ROOT": folder}
    return {**variables, "FLAGGEMS_CACHE_DIR": str(Path(folder) / "flaggems")}


_LOG = "; the end of its log:\n"


class EngineError(RuntimeError):
    """An engine did not start, died, or gave a wrong answer; the message ends with the end of its log."""

    @property
    def reason(self) -> str:
        """Without the log."""
        return str(self).partition(_LOG)[0]


class Engine:
    """One engine script.

    Args:
        name: for tables, logs and messages.
        own: this repository's packages are on its path.
        eager: no graphs.
        variables: of its environment.
        arguments: the folders ``site``, ``own`` and ``out``.
        options: further arguments of the script.
        script: beside this file.
        wait: for it to be ready; else ``ready`` must be called.
    """

    def __init__(
        self,
        name: str,
        own: bool,
        eager: bool,
        variables: Mapping[str, str],
        arguments: Any,
        *options: str,
        script: str = "engine.py",
        wait: bool = True,
    ) -> None:
        self.name = name
        folders = [str(arguments.own)] if own else []
        path = os.pathsep.join([*folders, str(arguments.site)])
        environ = {**os.environ, **VARIABLES, **variables, "PYTHONPATH": path}
        self.log = arguments.out / f"engine-{name.replace(', ', '-').replace(' ', '-')}.log"
        command = [sys.executable, str(HERE / script), *(["--eager"] if eager else []), *options]
        self._started = time.monotonic()
        with self.log.open("w", encoding="utf-8") as log:
            # A group of its own in the same session: it can be stopped as a whole, and whoever ends the session ends it too.
            self._process = subprocess.Popen(
                command,
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                process_group=0,
            )
        self._spent_to_start: dict[int, float] = {}
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if wait:
            self.ready()

    def _read(self) -> None:
        output: TextIO = self._process.stdout  # type: ignore[assignment]  # a pipe was asked for
        with output:
            for line in output:
                self._lines.put(line)
        self._lines.put(None)

    def ready(self, seconds: float = START_SECONDS) -> None:
        """Wait until it is up, so long from its start.

        Raises:
            EngineError: it is not; the message ends with the end of its log.
        """
        self._answer("READY", max(1.0, self._started + seconds - time.monotonic()))
        self._spent_to_start = spent(self._process.pid)
        print(f"{self.name}: up after {time.monotonic() - self._started:.0f} s", flush=True)

    def _answer(self, word: str, seconds: float) -> str:
        deadline = time.monotonic() + seconds
        why = f"none after {seconds:.0f} s"
        with contextlib.suppress(queue.Empty):
            while (line := self._lines.get(timeout=max(0.0, deadline - time.monotonic()))) is not None:
                if line.startswith(word):
                    return line.removeprefix(word).strip()
                if line.startswith("WRONG"):
                    why = line.strip()
                    break
            else:
                why = "it ended"
                self._lines.put(None)  # for whoever asks next
        raise EngineError(f"{self.name}: no {word}, {why}{_LOG}{self.tail()}")

    def tail(self, lines: int = 30) -> str:
        """The end of its log."""
        return "\n".join(self.text().splitlines()[-lines:])

    def text(self) -> str:
        """Its log."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def ask(self, message: Mapping[str, Any]) -> None:
        """Send a job."""
        pipe: TextIO = self._process.stdin  # type: ignore[assignment]  # a pipe was asked for
        try:
            pipe.write(json.dumps(message) + "\n")
            pipe.flush()
        except OSError as error:
            raise EngineError(f"{self.name}: {error}{_LOG}{self.tail()}") from error

    def seconds(self) -> float:
        """How long it took for the job that was sent."""
        return float(self._answer("SECONDS", ANSWER_SECONDS))

    def scores(self) -> list[dict[str, Any]]:
        """The log-probabilities that were asked for."""
        found: list[dict[str, Any]] = json.loads(self._answer("SCORES", ANSWER_SECONDS))
        return found

    def pause(self) -> None:
        """Stop all of its processes; idle ones would take the processor from the one that is measured."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them run."""
        self._signal(signal.SIGCONT)

    def place(self, placement: Placement) -> None:
        """Move its threads to their CPUs; the busiest is that of what it did since it was ready."""
        pin(self._process.pid, placement, self._spent_to_start)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def stop(self) -> None:
        """End it."""
        stop_all([self])

    def end_input(self) -> None:
        """Ask it to end."""
        self.resume()
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]  # a pipe was asked for

    def kill(self, deadline: float) -> None:
        """Wait so long for its end, then end what is left of its group."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._reader.join(5)


def stop_all(engines: Iterable[Engine], seconds: float = 8.0) -> None:
    """End them together; one that hangs at its end is no loss."""
    listed = list(engines)
    for engine in listed:
        engine.end_input()
    deadline = time.monotonic() + seconds
    for engine in listed:
        engine.kill(deadline)


def all_ready(engines: Iterable[Engine], failed: dict[str, str]) -> list[Engine]:
    """Wait for engines that were started together; those that do not come up are ended and noted in ``failed``."""
    up: list[Engine] = []
    for engine in engines:
        try:
            engine.ready()
            up.append(engine)
        except EngineError as error:
            print(error, flush=True)
            failed[engine.name] = error.reason
            engine.stop()
    return up


def exit_on_terminate() -> None:
    """Make SIGTERM an exception, so that engines are ended when a step runs out of time."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
