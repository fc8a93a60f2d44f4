# SPDX-License-Identifier: Apache-2.0
"""Running other programs: in a clean environment, with progress, and with readable errors."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fltool.paths import ENVS, ROOT, relative

# Settings of the user's shell that would change what a test or an install does without anyone seeing it.
LEAKING_PREFIXES = ("SGLANG_", "VLLM_", "FL_DISPATCH_", "SGLANG_FL_", "VLLM_FL_")
LEAKING_NAMES = frozenset(
    {
        "PYTHONPATH",
        "PYTHONHOME",
        "PYTHONWARNINGS",
        # An engine has three processes, and each would compile the sources of torch and the engine anew.
        "PYTHONDONTWRITEBYTECODE",
        "USE_FLAGGEMS",
        "PIP_USER",
        "PIP_TARGET",
        "PIP_PREFIX",
    }
)

HEARTBEAT_SECONDS = 20.0
TAIL_LINES = 15


class ToolError(Exception):
    """Something the user has to know about. The text is the whole message; no traceback is shown."""


class CommandFailed(ToolError):
    """A command exited non-zero: names the command, the end of its output and one hint."""

    def __init__(self, command: Sequence[str], status: int, log: Path, hint: str) -> None:
        """Read the end of the log, which holds the command's output."""
        tail = [line for line in _lines(log) if not is_noise(line)][-TAIL_LINES:]
        shown = "\n".join(f"    {line}" for line in tail) or "    (it printed nothing)"
        super().__init__(
            f"this command failed with exit status {status}:\n    {shlex.join(command)}\n"
            f"  the last lines it printed (all of them are in {relative(log)}):\n{shown}\n  hint: {hint}"
        )


def clean_environment(
    extra: Mapping[str, str] | None = None, *, base: Mapping[str, str] | None = None, keep_settings: bool = False
) -> dict[str, str]:
    """The environment variables for a child process.

    Args:
        extra: set on top.
        base: what to start from; the tool's own environment when None.
        keep_settings: leave the engines' and our own settings in, for commands that a user runs with them.

    Returns:
        base without the variables that would leak into tests, with a usable HOME.
    """
    source = os.environ if base is None else base
    result = {
        name: value
        for name, value in source.items()
        if (keep_settings and (name == "USE_FLAGGEMS" or name.startswith(LEAKING_PREFIXES)))
        or (name not in LEAKING_NAMES and not name.startswith(LEAKING_PREFIXES))
    }
    if not result.get("HOME"):
        # pip, Hugging Face and Triton keep caches there; without one they write to the root of the file system.
        result["HOME"] = str(ENVS / "home")
    result.update(extra or {})
    return result


def is_noise(line: str) -> bool:
    """Whether a line of pip's output tells a reader nothing (mirrors and caches being looked at, blank lines)."""
    text = line.strip()
    return (
        not text
        or text.startswith(("Looking in links:", "Looking in indexes:", "ERROR: Ignored the following versions"))
        or (text.startswith("WARNING: Location ") and "is ignored" in text)
    )


@contextlib.contextmanager
def timed(label: str) -> Iterator[None]:
    """Print the label, run the block, print how long it took."""
    started = time.monotonic()
    print(f"  {label} ...", flush=True)
    yield
    print(f"  {label}: {time.monotonic() - started:.1f} s", flush=True)


def run_logged(command: Sequence[str], *, log: Path, hint: str, environment: Mapping[str, str] | None = None) -> None:
    """Run a long command quietly, its output in a file, with a sign of life every now and then.

    Raises:
        CommandFailed: the exit status is not zero.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with log.open("w", encoding="utf-8") as output:
        process = _start(command, clean_environment() if environment is None else environment, output.fileno())
        with _ended_on_exit(process):
            while True:
                try:
                    status = process.wait(timeout=HEARTBEAT_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    last = next((line for line in reversed(_lines(log)) if not is_noise(line)), "running")
                    print(f"    {time.monotonic() - started:.0f} s: {last.strip()[:100]}", flush=True)
    if status != 0:
        raise CommandFailed(command, status, log, hint)


def run_shown(command: Sequence[str], *, environment: Mapping[str, str], timeout: float | None = None) -> int:
    """Run a command with its output on ours and nothing to read on stdin.

    Returns:
        the exit status; 124 if it was ended after ``timeout`` seconds.
    """
    process = _start(command, environment, None)
    with _ended_on_exit(process):
        try:
            return process.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            print(f"error: ended after {timeout:.0f} s: {shlex.join(command)}", flush=True)
            return 124


def _start(command: Sequence[str], environment: Mapping[str, str], output: int | None) -> subprocess.Popen[bytes]:
    # A session of its own, so that the engines' worker processes can be ended with it.
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        start_new_session=True,
    )


@contextlib.contextmanager
def _ended_on_exit(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        # Also after a normal end: a crashed engine leaves workers behind that would hold ports and memory.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _lines(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
