# SPDX-License-Identifier: Apache-2.0
"""Stamps: what a finished piece of work was made from, so that it is made again only when that changed."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path


def fingerprint(*, values: Iterable[str] = (), files: Iterable[Path] = ()) -> str:
    """A hash of values and of files' names and contents. Order matters for values; files are sorted."""
    digest = hashlib.sha256()
    for value in values:
        digest.update(f"value {len(value)} {value}\n".encode())
    for path in sorted(files):
        content = path.read_bytes()
        digest.update(f"file {path.name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


class Stamp:
    """A small JSON file of named fingerprints beside the thing that they describe."""

    def __init__(self, path: Path) -> None:
        """Nothing is read or written yet."""
        self.path = path

    def matches(self, name: str, expected: str) -> bool:
        """Whether the part ``name`` was finished from exactly this; False for a missing or damaged file."""
        return self._read().get(name) == expected

    def write(self, name: str, value: str) -> None:
        """Record that the part ``name`` is finished; the other parts keep their fingerprints."""
        content = {**self._read(), name: value}
        temporary = self.path.with_name(self.path.name + ".new")
        temporary.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        temporary.replace(self.path)

    def _read(self) -> dict[str, str]:
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file, so that two terminals do not build the same thing into one folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"  waiting: another fl.py holds {path.name}", flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
