# SPDX-License-Identifier: Apache-2.0
"""Where the output of runs goes, and the end of one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from fl_dispatch.errors import ConfigError

_LINES = 12
_BYTES = 8192


def log_folder(asked: Path | None) -> Path:
    """The folder, made where it does not exist; None: a new temporary one.

    Raises:
        ConfigError: nothing can be written there, or output of other runs would be overwritten.
    """
    if asked is None:
        try:
            return Path(tempfile.mkdtemp(prefix="fl-bisect-"))
        except OSError as error:
            raise ConfigError(f"no temporary folder can be made: {error.strerror}; name one with --logs") from error
    try:
        asked.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--logs: {str(asked)!r} cannot be made a folder: {error.strerror}") from error
    try:
        with tempfile.NamedTemporaryFile(dir=asked):
            pass
    except OSError as error:
        raise ConfigError(f"--logs: nothing can be written in {str(asked)!r}: {error.strerror}") from error
    if any(asked.glob("run-*.log")):
        raise ConfigError(f"--logs: {str(asked)!r} has the output of other runs; name a new folder")
    return asked


def end_of(log: Path) -> list[str]:
    """The last lines without the first one, which has the command. A log may be longer than memory, or one line."""
    with log.open("rb") as file:
        cut = max(file.seek(0, os.SEEK_END) - _BYTES, 0)
        file.seek(cut)
        lines = file.read(_BYTES).decode("utf-8", errors="replace").splitlines()
    if cut and len(lines) == 1:
        return [f"... {lines[0]}"]
    return lines[1:][-_LINES:]  # the first one is the command, or cut
