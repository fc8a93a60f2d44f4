# SPDX-License-Identifier: Apache-2.0
"""What the policy chooses for an operator and what else could serve it, asked in a process of its own: where vendors are
asked a device may be initialised, and its memory belongs to the command that is judged."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fl_dispatch.adapters import CORE_PREFIX
from fl_dispatch.native import IMPL_ID

_TIMEOUT = 300


@dataclass(frozen=True)
class Candidates:
    """Of one operator, as far as that can be said without a layer.

    ``chosen``: ids of what is chosen, several where the number of tokens decides. ``others``: tokens for what else is able,
    most wanted first, and for the framework's own method. ``vendors``: whose the chosen ones are, as the conformance kit
    names them. ``problem``: why nothing of this is known; empty otherwise.
    """

    chosen: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    vendors: tuple[str, ...] = ()
    problem: str = ""


def candidates(op_name: str, prefix: str, environ: Mapping[str, str]) -> Candidates:
    """Ask ``fl-dispatch explain``; never raises for what goes wrong there."""
    command = [sys.executable, "-m", "fl_dispatch", "explain", op_name, "--prefix", prefix, "--json"]
    try:
        done = subprocess.run(
            command, env=dict(environ), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT
        )
        parts: list[dict[str, Any]] = [found := json.loads(done.stdout)]
    except subprocess.TimeoutExpired:
        return Candidates(problem=f"`fl-dispatch explain {op_name}` did not end within {_TIMEOUT} s")
    except json.JSONDecodeError:
        _, ours, error = done.stderr.partition("fl-dispatch: error: ")
        if not ours:  # it crashed
            error = "".join(done.stderr.splitlines()[-1:]) or f"exit status {done.returncode}"
        return Candidates(problem=f"`fl-dispatch explain {op_name}`: {' '.join(error.split())}")
    parts = found["by_tokens"] or parts
    chosen = tuple(dict.fromkeys(part["chosen"] for part in parts if part["chosen"]))
    rows = [row for part in parts for row in part["candidates"]]
    able = [row["impl_id"] for row in rows if row["accepted"] and row["impl_id"] not in chosen]
    tokens = [IMPL_ID if impl_id == IMPL_ID else f"impl:{impl_id}" for impl_id in able]
    if prefix != CORE_PREFIX and IMPL_ID not in chosen:
        tokens.append(IMPL_ID)
    whose = {row["impl_id"]: row["vendor"] or row["kind"] for row in rows}
    vendors = dict.fromkeys(whose[impl_id] for impl_id in chosen if impl_id != IMPL_ID)
    return Candidates(chosen, tuple(dict.fromkeys(tokens)), tuple(vendors))
