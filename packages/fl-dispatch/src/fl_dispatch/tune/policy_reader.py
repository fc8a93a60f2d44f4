# SPDX-License-Identifier: Apache-2.0
"""Reading what a policy file keeps of a measurement. People edit such files, and copies break off: everything is checked."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from fl_dispatch.errors import ConfigError
from fl_dispatch.native import IMPL_ID
from fl_dispatch.tune.measure import Figure

_PURPOSES = ("graph", "eager")
_WORDS = ("workload", "op_name", "dtype", "impl_id")
_TIMES = ("floor_us", "host_us", "device_us", "host_spread_us", "device_spread_us")
#: More than any time or number of tokens; what is not below it is infinite, not a number, or damaged.
_LIMIT = 1e15


def read(path: Path) -> dict[str, Any]:
    """What such a file keeps under ``tuned``, the figures as ``Figure``; raises ConfigError naming the file and its fault."""
    try:
        tuned = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--from: cannot read {str(path)!r}: {error.strerror}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise ConfigError(f"--from: {str(path)!r} is no YAML: {where}{error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"--from: {str(path)!r} is no YAML: {str(error).splitlines()[0]}") from error
    try:
        return _tuned(tuned)
    except ValueError as error:
        raise ConfigError(
            f"--from: {str(path)!r} was not written by fl-dispatch tune, or was damaged: {error}"
        ) from error


def _tuned(content: Any) -> dict[str, Any]:
    """Checked; raises ValueError."""
    if not isinstance(content, Mapping) or not isinstance(content.get("tuned"), Mapping):
        raise ValueError("it has no mapping 'tuned'")
    tuned = dict(content["tuned"])
    if isinstance(tuned.get("date"), datetime.date):
        tuned["date"] = tuned["date"].isoformat()  # YAML's own type, where the quotes are gone
    for key in ("device", "date", "dtype"):
        _word(tuned, key, f"tuned.{key}")
    if tuned.get("for") not in _PURPOSES:
        raise ValueError(f"tuned.for must be graph or eager, {_found(tuned, 'for')}")
    if not isinstance(tuned.get("not_able", {}), Mapping):
        raise ValueError(f"tuned.not_able must be a mapping, {_found(tuned, 'not_able')}")
    rows = tuned.get("figures")
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"tuned.figures must be a list of figures, {_found(tuned, 'figures')}")
    tuned["figures"] = [_figure(row, f"tuned.figures[{place}]") for place, row in enumerate(rows)]
    seen: dict[tuple[Any, ...], int] = {}
    for place, one in enumerate(tuned["figures"]):
        first = seen.setdefault((one.workload, one.dtype, one.tokens, one.impl_id), place)
        if first != place:
            raise ValueError(f"tuned.figures[{place}] is of the same as tuned.figures[{first}]")
    if all(figure.dtype != tuned["dtype"] for figure in tuned["figures"]):
        raise ValueError(f"tuned.dtype is {tuned['dtype']!r}, of which there are no figures")
    return tuned


def _figure(row: Any, where: str) -> Figure:
    if not isinstance(row, Mapping):
        raise ValueError(f"{where} must be a mapping, not {row!r}"[:200])
    unknown = [key for key in row if key not in {field.name for field in fields(Figure)}]
    if unknown:
        raise ValueError(f"{where} has {unknown[0]!r}, which is nothing of a figure")
    for key in _WORDS:
        _word(row, key, f"{where}.{key}")
    tokens = row.get("tokens")
    if not isinstance(tokens, int) or isinstance(tokens, bool) or not 1 <= tokens < _LIMIT:
        raise ValueError(f"{where}.tokens must be an int from 1 on, {_found(row, 'tokens')}")
    for key in _TIMES:
        if key not in row and key != "floor_us":
            continue
        value = row.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < _LIMIT:
            raise ValueError(f"{where}.{key} must be microseconds, 0 or more, {_found(row, key)}")
    if not isinstance(row.get("fused", False), bool):
        raise ValueError(f"{where}.fused must be true or false, {_found(row, 'fused')}")
    if row.get("fused") and row["impl_id"] != IMPL_ID:
        raise ValueError(f"{where}.fused is of {IMPL_ID} only, not of {row['impl_id']!r}")
    if "failed" in row:
        _word(row, "failed", f"{where}.failed")
    return Figure(**row)


def _word(found: Mapping[str, Any], key: str, where: str) -> None:
    if not isinstance(found.get(key), str) or not found[key]:
        raise ValueError(f"{where} must be a word, {_found(found, key)}")


def _found(found: Mapping[str, Any], key: str) -> str:
    return f"not {found[key]!r}"[:120] if key in found else "and is missing"
