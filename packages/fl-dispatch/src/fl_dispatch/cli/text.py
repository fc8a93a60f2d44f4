# SPDX-License-Identifier: Apache-2.0
"""Plain text in at most 100 columns: wrapped paragraphs, aligned columns, JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence

WIDTH = 100
_NARROWEST_LAST_COLUMN = 24


def wrapped(text: str, first: str = "", rest: str | None = None, width: int = WIDTH) -> str:
    """Text after ``first``, wrapped; following lines come after ``rest``, or blanks as long as ``first``.

    Line ends in the text are kept, so are words longer than a line (paths).
    """
    rest = " " * len(first) if rest is None else rest
    lines: list[str] = []
    for paragraph in text.splitlines() or [""]:
        lines += textwrap.wrap(
            paragraph,
            width,
            initial_indent=rest if lines else first,
            subsequent_indent=rest,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [first.rstrip()]
    return "\n".join(lines)


def columns(head: Sequence[str], rows: Sequence[Sequence[str]], indent: str = "  ") -> str:
    """A table; every column as wide as its widest cell, the last one wrapped to what is left of the line."""
    table = [tuple(head), *map(tuple, rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(head) - 1)]
    room = max(WIDTH - len(indent) - sum(widths) - 2 * len(widths), _NARROWEST_LAST_COLUMN)
    underline = [*("-" * width for width in widths), "-" * min(room, max(len(row[-1]) for row in table))]
    lines = []
    for row in (table[0], tuple(underline), *table[1:]):
        first = indent + "".join(cell.ljust(width) + "  " for cell, width in zip(row[:-1], widths, strict=True))
        lines.append(wrapped(row[-1] or "-", first, width=len(first) + room).rstrip())
    return "\n".join(lines)


def as_json(value: object) -> str:
    """What ``--json`` prints."""
    return json.dumps(value, indent=2, default=str, ensure_ascii=False)
