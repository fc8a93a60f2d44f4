# SPDX-License-Identifier: Apache-2.0
"""A report as the table that people read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def format_report(report: Mapping[str, Any]) -> str:
    """A report, read back from its file or not, as the table people see; with a column of calls once there are any."""
    counted = any(row["calls"] or row.get("graph_sites") for row in report["operators"])
    head = ["operator", "layer class", "layers", "calls", "implementation", "why", "passed over"]
    body = []
    for row in report["operators"]:
        passed = "; ".join(f"{p['implementation']}: {p['reason']}" for p in row["passed_over"]) or "-"
        served = "".join(f" ({count} by {other})" for other, count in row["served_by_others"].items())
        graphs = f" + {row['graph_sites']} in graphs" if row.get("graph_sites") else ""
        calls = f"{row['calls']}{served}{graphs}"
        cells = (row["operator"], row["layer_class"], row["layers"], calls, row["implementation"], row["why"], passed)
        body.append([str(cell) for cell in cells])
    for left in report["left_to_framework"]:
        cells = (left["operator"], left["layer_class"], left["layers"], "-", "(framework's own)", left["reason"], "-")
        body.append([str(cell) for cell in cells])
    if not counted:
        for line in (head, *body):
            del line[3]
    rank = (
        f"rank {report['rank']}" if report.get("dp_rank") is None else f"dp {report['dp_rank']} rank {report['rank']}"
    )
    title = f"fl-dispatch on {report['framework']}, {report['role']} {rank}, {report['device']}"
    aten = _aten_line(report.get("aten"))
    notes = "".join(f"\nNote: {note}." for note in report.get("notes", ()))
    compared = _compared(report.get("compared") or ())
    return f"{title}\n{_columns(head, body)}{notes}{aten}{compared}"


def _compared(rows: Sequence[Mapping[str, Any]]) -> str:
    """How right the calls were that were judged, worst first."""
    if not rows:
        return ""
    head = ["compared with float64", "layer class", "implementation", "calls", "wrong", "worst error", "in"]
    body, texts = [], []
    for row in sorted(rows, key=_badness, reverse=True):
        layers = f"{row['wrong_layers']} layer{'s' if row['wrong_layers'] > 1 else ''}"
        wrong = f"{row['wrong_calls']} in {layers}" if row["wrong_calls"] else "0"
        error = row["worst_error_of_tolerance"]
        worst = "NaN or infinity" if error is None else f"{error:.3g} times what is tolerated"
        cells = (
            row["operator"],
            row["layer_class"],
            row["implementation"],
            row["calls"],
            wrong,
            worst,
            row["worst_layer"],
        )
        body.append([str(cell) for cell in cells])
        if row["first_wrong"]:
            texts.append(f"\n{row['operator']} by {row['implementation']} was wrong first in {row['first_wrong']}")
            kit = f"pytest --fl-vendor {row['vendor']} --fl-operator {row['operator']}"
            without = f'PER_OP="{row["operator"]}=reference"'
            if row["vendor"] not in ("native", "reference"):
                texts.append(f"\n  for which inputs: {kit}; to go on without it: {without}")
        texts += [f"\n{row['operator']}: {count} calls not judged, {why}" for why, count in row["not_judged"].items()]
    return f"\n\n{_columns(head, body)}{''.join(texts)}"


def _badness(row: Mapping[str, Any]) -> tuple[int, float]:
    error = row["worst_error_of_tolerance"]
    return row["wrong_calls"], math.inf if error is None else error


def _aten_line(aten: Mapping[str, Any] | None) -> str:
    """What became of PyTorch's own operators, where somebody asked for another one."""
    if aten is None or aten["state"] == "off":
        return ""
    if aten["state"] != "on":
        return f"\nATen operators: PyTorch's own, because {aten['reason']}"
    refused = f", {len(aten['refused'])} refused by PyTorch" if aten["refused"] else ""
    served = f"; {len(aten['served'])} of them served a call" if aten.get("served") else ""
    return f"\nATen operators: {len(aten['replaced'])} by FlagGems {aten['flag_gems']}{refused}{served}"


def _columns(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    widths = [min(max(len(row[i]) for row in (head, *body)), 60) for i in range(len(head))]
    lines = []
    for row in (head, ["-" * width for width in widths], *body):
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return "\n".join(lines)
