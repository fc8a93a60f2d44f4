# SPDX-License-Identifier: Apache-2.0
"""``AtenRecord``: which replaced ATen operators served a call of this process, kept in memory and in a file of its own."""

from __future__ import annotations

import errno
import logging
import os
import threading
from pathlib import Path

from fl_dispatch.errors import ConfigError

logger = logging.getLogger("fl_dispatch")


class AtenRecord:
    """One line an operator, written at its first call, so that a killed process keeps what it had.

    Args:
        path: from the settings; rank and process id go into the name. None: in memory only.
        rank: of this process.
        where: the setting the path comes from, for messages.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, path: str | None, rank: int = 0, where: str = "flagos_record") -> None:
        self.seen: set[str] = set()
        self.path: Path | None = None
        self._lock = threading.Lock()
        self._writes = path is not None
        if path is not None:
            try:
                self.path = _new_file(Path(path).expanduser(), rank)
            except (OSError, RuntimeError, ValueError) as error:  # the latter two: no such user's home, a zero byte
                raise ConfigError(
                    f"{where}: cannot write the record {path!r}: {getattr(error, 'strerror', None) or error}; "
                    "give the path of a file in a folder that this process may write to"
                ) from error

    def served(self) -> list[str]:
        """The operators noted so far."""
        with self._lock:
            return sorted(self.seen)

    def note(self, key: str, function: str) -> None:
        """Note an operator; only its first call is written."""
        with self._lock:
            if key in self.seen:
                return
            self.seen.add(key)
            if self.path is None or not self._writes:
                return
            try:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(f"{key}\t{function}\n")
            except OSError as error:
                logger.warning("the record %s ends here: %s", self.path, error.strerror)
                self._writes = False


def _new_file(base: Path, rank: int) -> Path:
    """A file nobody had before: process ids come again, in containers at every start."""
    if base.is_dir():  # also ".", "/" and "..", which have no name to put rank and process id into
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(base))
    base.parent.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        again = f"-{number}" if number > 1 else ""
        path = base.with_name(f"{base.stem}.rank{rank}.pid{os.getpid()}{again}{base.suffix or '.txt'}")
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            number += 1
        else:
            return path
