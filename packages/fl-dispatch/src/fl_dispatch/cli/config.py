# SPDX-License-Identifier: Apache-2.0
"""``fl-dispatch config``: the settings in force with their origin, and the reference of all settings."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any

from fl_dispatch.adapters import prefix_in_use
from fl_dispatch.cli import settings
from fl_dispatch.cli.text import as_json, columns
from fl_dispatch.config import SETTINGS, USE_FLAGGEMS


def add_parser(subparsers: Any) -> None:
    """Add this command to the command line."""
    parser = subparsers.add_parser(
        "config",
        help="the settings in force, and the reference of all settings",
        description="Reads and checks all settings and shows where each value comes from. No vendor is imported and no "
        "device touched.",
    )
    parser.add_argument(
        "--reference", action="store_true", help="print the table of all settings in Markdown, not those in force"
    )
    settings.add_common_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> tuple[str, int]:
    """Carry it out; returns the text to print and the exit code."""
    if args.reference:
        table = reference(prefix_in_use(args.prefix).prefix)
        return (as_json(table) if args.json else _markdown(table)), 0
    choice, config = settings.read(args)
    in_force = dict(config.as_dict())
    path = os.environ.get(f"{choice.prefix}CONFIG", "").strip()
    in_force["config"] = {"value": path or None, "from": f"{choice.prefix}CONFIG" if path else "built-in"}
    if args.json:
        return as_json({"prefix": choice.prefix, "settings": in_force}), 0
    rows = []
    for key, entry in in_force.items():
        assert isinstance(entry, dict)  # as_dict gives value and origin of each
        rows.append((_variable(choice.prefix, key), str(entry["from"]), _shown(entry)))
    return settings.headline(choice) + "\n\n" + columns(("setting", "from", "value"), rows), 0


def reference(prefix: str) -> list[dict[str, Any]]:
    """Every setting: its variable, key in files, form, default and meaning."""
    rows: list[dict[str, Any]] = [
        {
            "variable": _variable(prefix, setting.key),
            "key": setting.key if setting.in_file else None,
            "form": setting.form,
            "default": in_variable_form(setting.default),
            "meaning": setting.meaning,
        }
        for setting in SETTINGS
    ]
    meaning = "Off: FlagGems is not even imported. Read by FlagGems too, so it has no prefix."
    rows.append({"variable": USE_FLAGGEMS, "key": None, "form": "flag", "default": "1", "meaning": meaning})
    return rows


def _shown(entry: Mapping[str, Any]) -> str:
    """A list that was set to be empty is not the same as one that was not set."""
    if entry["value"] == [] and entry["from"] != "built-in":
        return "none"
    return in_variable_form(entry["value"])


def in_variable_form(value: Any) -> str:
    """A value as one would write it into its variable; ``-`` when nothing is set."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, Mapping):
        return ";".join(f"{op}={_order_text(order)}" for op, order in value.items()) or "-"
    if isinstance(value, (list, tuple)):
        return ",".join(value) or "-"
    return "-" if value is None else str(value)


def _order_text(order: Any) -> str:
    if isinstance(order, Mapping):  # by the number of tokens, which only files can say
        return ", ".join(f"{bound}: {_order_text(each)}" for bound, each in order.items())
    return "|".join(order)


def _variable(prefix: str, key: str) -> str:
    return USE_FLAGGEMS if key == "use_flaggems" else prefix + key.upper()


def _markdown(rows: list[dict[str, Any]]) -> str:
    lines = ["| variable | key in files | form | default | meaning |", "|---|---|---|---|---|"]
    for row in rows:
        key = f"`{row['key']}`" if row["key"] else "-"
        default = f"`{row['default']}`" if row["default"] != "-" else "-"
        lines.append(f"| `{row['variable']}` | {key} | {row['form']} | {default} | {row['meaning']} |")
    return "\n".join(lines)
