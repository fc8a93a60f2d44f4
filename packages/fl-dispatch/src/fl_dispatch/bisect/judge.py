# SPDX-License-Identifier: Apache-2.0
"""One run of a command: in a process group of its own, its output in a file, its exit status as a verdict."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from fl_dispatch.bisect.search import Verdict
from fl_dispatch.errors import ConfigError

#: The exit status that says "cannot be judged", as for `git bisect run`.
CANNOT_JUDGE = 125
#: Whoever sends these wants an end; any other signal is a crash, or how SGLang ends its processes after one.
_ASKED_TO_STOP = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
#: What ends this program, and what it runs with it: a run is in a session of its own, where no terminal reaches it.
_ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
#: Seconds that processes have to end after being asked to, before they are killed.
_GRACE = 10.0


def verdict(status: int) -> tuple[Verdict | None, str]:
    """What an exit status of ``subprocess`` says, and in words; None: neither, no use to go on.

    0 is good, 125 not judged, any other up to 127 bad, as for ``git bisect run``. Other than there, a crash is bad too: a
    kernel may be to blame for it.
    """
    number = -status if status < 0 else status - 128  # a shell says 128 + N where its child died of signal N
    if number in set(signal.Signals):
        name = signal.Signals(number).name
        return None if number in _ASKED_TO_STOP else Verdict.BAD, f"ended by {name}"
    words = f"exit status {status}"
    if not 0 <= status <= 127:
        return None, words
    if status == CANNOT_JUDGE:
        return Verdict.UNJUDGED, words
    return Verdict.BAD if status else Verdict.GOOD, words


def run_command(command: Sequence[str], environ: Mapping[str, str], log: Path, timeout: float | None) -> int | None:
    """Run a command to its end and return its exit status; None: it did not end in time.

    Its output is appended to ``log``, and it has no input. What it leaves running in its process group is ended, also when
    this call is interrupted. For the main thread, which alone gets signals.

    Raises:
        ConfigError: there is no such program, or it cannot be executed.
    """
    process = None
    try:
        with log.open("ab") as output, _interruptions_held_back():
            process = subprocess.Popen(
                command,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return process.wait(timeout)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"command {command[0]!r} cannot be run: {reason}; "
            "a shell's own words (pipes, &&, variables) go into bash -c '...'"
        ) from error
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process is not None:
            _end(process)


def all_as_ctrl_c() -> contextlib.AbstractContextManager[None]:
    """Let every signal that would end this program raise KeyboardInterrupt, so that no run outlives it."""
    return _handled_by(_interrupt)


def _interrupt(number: int, _: FrameType | None) -> None:
    if number == signal.SIGHUP:  # with a terminal it comes from the shell and from the kernel; nobody is impatient
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextlib.contextmanager
def _interruptions_held_back() -> Iterator[None]:
    """Let them wait until a started process is known, which nothing would end otherwise."""
    arrived: list[int] = []
    with _handled_by(lambda number, _: arrived.append(number)):
        yield
    for held_back in arrived:
        signal.raise_signal(held_back)


@contextlib.contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Except for what is ignored, as under nohup: that stays so, here and in what is started."""
    numbers = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the process group to end, then kill what is left; a second Ctrl-C cuts the waiting short."""
    try:
        _signal(process, signal.SIGTERM)
    finally:
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    deadline = time.monotonic() + _GRACE
    if _runs(process):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
    while _runs(process) and time.monotonic() < deadline:
        time.sleep(0.02)


def _runs(process: subprocess.Popen[bytes]) -> bool:
    """Whether anything of the process group still runs. What has ended and waits for its parent to notice does not: in
    containers without an init process that is forever."""
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # on macOS, where all that is left has ended
        return False
    stats = list(Path("/proc").glob("[0-9]*/stat"))
    return any(_is_of(process.pid, stat) for stat in stats) if stats else True


def _is_of(group: int, stat: Path) -> bool:
    try:
        state, _, of_group = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:3]
    except (OSError, ValueError):
        return False
    return int(of_group) == group and state not in "ZX"
