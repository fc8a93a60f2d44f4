# SPDX-License-Identifier: Apache-2.0
"""``fl-dispatch list``: every operator with its implementations, and every installed vendor."""

from __future__ import annotations

import argparse
from typing import Any

from fl_dispatch.cli import settings
from fl_dispatch.cli.text import as_json, columns, wrapped
from fl_dispatch.types import OpImpl


def add_parser(subparsers: Any) -> None:
    """Add this command to the command line."""
    parser = subparsers.add_parser(
        "list",
        help="operators, implementations and vendors",
        description="Lists every installed vendor, and every operator with its implementations: kind, vendor, "
        "priority, whether it can be used here or why not, what it declares, which distribution it comes from. "
        "Imports the vendors that the settings allow and asks them whether they can be used.",
    )
    settings.add_common_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> tuple[str, int]:
    """Carry it out; returns the text to print and the exit code."""
    from fl_dispatch.manager import OpManager

    choice, config = settings.read(args)
    manager = OpManager(policy=config.policy)
    registry = manager.registry
    table = registry.snapshot()
    asked: dict[Any, str | None] = {}
    operators = []
    for op_name in registry.op_names():
        impls = sorted(table.get(op_name, ()), key=lambda impl: (-(impl.priority or 0), impl.impl_id))
        operators.append(
            {
                "operator": op_name,
                "summary": registry.spec(op_name).summary,
                "implementations": [describe(impl, asked) for impl in impls],
            }
        )
    result = {
        "prefix": choice.prefix,
        "vendors": [record.as_dict() for record in manager.vendors],
        "operators": operators,
    }
    return (as_json(result) if args.json else _text(settings.headline(choice), result)), 0


def describe(impl: OpImpl, asked: dict[Any, str | None]) -> dict[str, Any]:
    """One implementation as plain values; ``asked`` keeps the answers of probes that several implementations share."""
    from fl_dispatch.facts import unavailable_reason

    probe = impl.available
    if probe is not None and probe not in asked:
        asked[probe] = unavailable_reason(probe)
    reason = asked[probe] if probe is not None else None
    return {
        "impl_id": impl.impl_id,
        "kind": impl.kind.value,
        "vendor": impl.vendor,
        "priority": impl.priority,
        "available": reason is None,
        "reason": reason,
        "registered_by": impl.registered_by,
        "declares": {
            "dtypes": None if impl.dtypes is None else sorted(impl.dtypes),
            "devices": None if impl.devices is None else sorted(impl.devices),
            "min_arch": impl.min_arch,
            "supports": impl.supports is not None,
            "supports_layer": impl.supports_layer is not None,
            "honours": {name: sorted(map(repr, values)) for name, values in impl.honours.items()},
            "mutates": None if impl.mutates is None else sorted(impl.mutates),
            "traceable": impl.traceable,
            "capture_safe": impl.capture_safe,
        },
    }


def limits(declares: dict[str, Any]) -> str:
    """What an implementation declares, in words."""
    words = []
    if declares["dtypes"] is not None:
        words.append("takes " + ", ".join(declares["dtypes"]))
    if declares["devices"] is not None:
        words.append("on " + " or ".join(declares["devices"]))
    if declares["min_arch"] is not None:
        words.append("architecture {}.{} or newer".format(*declares["min_arch"]))
    if declares["supports"]:
        words.append("checks each call")
    if declares["supports_layer"]:
        words.append("checks each layer")
    words += [f"honours {name} only as {' or '.join(values)}" for name, values in declares["honours"].items()]
    mutates = declares["mutates"]
    if mutates is None:
        words.append("may write to any argument")
    else:
        words.append("writes to " + (", ".join(mutates) if mutates else "no argument"))
    words.append("traceable" if declares["traceable"] else "not traceable")
    words.append("capture-safe" if declares["capture_safe"] else "not declared capture-safe")
    return "; ".join(words)


def _text(headline: str, result: dict[str, Any]) -> str:
    lines = [headline, "", "vendors"]
    vendors = [
        (v["name"], v["status"], f"{v['distribution']} {v['version']}", str(v["implementations"]), v["reason"])
        for v in result["vendors"]
    ]
    if vendors:
        lines.append(columns(("name", "status", "from", "impls", "reason"), vendors))
    else:
        lines.append("  none installed (entry-point group fl_dispatch.vendors)")
    for operator in result["operators"]:
        lines += ["", wrapped(operator["summary"] or "", f"{operator['operator']}: ", "  ")]
        impls = operator["implementations"]
        indent = " " * (max((len(impl["impl_id"]) for impl in impls), default=0) + 4)
        for impl in impls:
            group = f"vendor {impl['vendor']}" if impl["vendor"] else impl["kind"]
            first = f"  {impl['impl_id']}".ljust(len(indent))
            origin = f"from {impl['registered_by'] or 'unknown'}"
            lines.append(wrapped(f"{group}, priority {impl['priority']}, {origin}", first, indent))
            state = "available" if impl["available"] else f"not available: {impl['reason']}"
            lines += [wrapped(state, indent), wrapped(limits(impl["declares"]), indent)]
        if not impls:
            lines.append("  no implementation")
    return "\n".join(lines)
