# SPDX-License-Identifier: Apache-2.0
"""Tuned policies: which file an engine gets, and whether its layers run what the file says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results"
#: A run's policy to the one that was recorded; each framework has its own, whose ``native`` means its methods.
RECORDED = {
    "fl-tuned.yaml": "tune_h200.yaml",
    "fl-tuned-eager.yaml": "tune_h200-eager.yaml",
    "fl-tuned-vllm.yaml": "tune_h200_vllm.yaml",
    "fl-tuned-vllm-eager.yaml": "tune_h200_vllm-eager.yaml",
}
OWN_METHOD = "(framework's own)"
_ROW = re.compile(
    r"(?<!\S)(\w+)\s{2,}(\w[^ ]*(?: \S+)*)\s{2,}(\d+)\s{2,}(\(framework's own\)|[\w.]+)\s{2,}(\S+(?: \S+)*)"
)


@dataclass(frozen=True)
class Row:
    """One line of the table that a worker prints once its model is loaded."""

    operator: str
    layer_class: str
    layers: int
    implementation: str
    why: str


def printed_table(log: str) -> list[Row]:
    """The rows of the table in an engine's log; none where there is no table."""
    _, found, rest = log.partition("fl-dispatch on ")
    if not found:
        return []
    rows: list[Row] = []
    for line in rest.splitlines()[1:]:
        match = _ROW.search(line)
        if match is not None:
            rows.append(Row(match[1], match[2], int(match[3]), match[4], match[5]))
        elif rows:
            break
    return rows


def policy_file(name: str, out: Path) -> Path:
    """A tuned policy, as an absolute path: the one of this run where a step has written it, else that in ``benchmarks/results``.

    Args:
        name: of the file in the output folder, ``fl-tuned.yaml`` and the like.
        out: the output folder.

    Raises:
        FileNotFoundError: there is neither; the message names both.
    """
    candidates = [out / name, *([RESULTS / RECORDED[name]] if name in RECORDED else [])]
    found = next((path.resolve() for path in candidates if path.exists()), None)
    if found is None:
        raise FileNotFoundError(f"there is no tuned policy {' or '.join(map(str, candidates))}; run its tune step")
    return found


def firsts(order: Any) -> list[str]:
    """The first token of each bucket of an operator's entry in ``per_op``, in the file's order."""
    buckets = list(order.values()) if isinstance(order, dict) else [order]
    return [(bucket if isinstance(bucket, str) else bucket[0]).split(",")[0] for bucket in buckets]


def not_as_tuned(policy: dict[str, Any], rows: list[Row]) -> list[str]:
    """What the layers of an engine run otherwise than its tuned policy puts first; for SGLang, where nothing is refused.

    Args:
        policy: the content of the file.
        rows: of the table in the engine's log.
    """
    if not rows:
        return ["the log has no table of layers"]
    problems = []
    for operator in sorted({row.operator for row in rows}):
        ours = [row for row in rows if row.operator == operator]
        wanted = set(firsts((policy.get("per_op") or {}).get(operator, "?")))
        if wanted == {"native"}:
            if any(row.implementation != OWN_METHOD or "by policy" not in row.why for row in ours):
                problems.append(f"{operator} should be left to the framework's own method, but: {_said(ours)}")
        else:
            missing = {token.removeprefix("impl:") for token in wanted} - {row.implementation for row in ours}
            if missing:
                problems.append(f"{operator} should run {', '.join(sorted(missing))}, but: {_said(ours)}")
    return problems


def _said(rows: list[Row]) -> str:
    return "; ".join(f"{row.layers} x {row.layer_class} {row.implementation}, {row.why}" for row in rows)
