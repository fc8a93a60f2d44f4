# SPDX-License-Identifier: Apache-2.0
"""``fl-dispatch doctor``: versions of everything that matters, and what is broken with how to mend it."""

from __future__ import annotations

import argparse
import platform
import textwrap
from importlib.metadata import entry_points
from typing import Any

import fl_dispatch
from fl_dispatch.adapters import installed_version, prefix_in_use
from fl_dispatch.cli import settings
from fl_dispatch.cli.text import as_json, columns, wrapped
from fl_dispatch.doctor import Finding, diagnose
from fl_dispatch.vendor import VENDOR_GROUP

#: flashinfer, as sgl_kernel's norms are its where it is installed.
_DISTRIBUTIONS = (
    "torch", "triton", "flag-gems", "sglang", "vllm", "sgl-kernel", "sglang-kernel", "flashinfer-python", "torch-npu",
    "fl-dispatch", "sglang-fl", "vllm-fl-adapter",
)  # fmt: skip


def add_parser(subparsers: Any) -> None:
    """Add this command to the command line."""
    parser = subparsers.add_parser(
        "doctor",
        help="versions, and what is broken",
        description="Shows the versions of everything that matters and checks settings, vendors, FlagGems and the "
        "adapters. Exits with 1 when it finds a fault.",
    )
    parser.add_argument("--verbose", "-v", action="store_true", help="show the traceback of what failed")
    settings.add_common_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> tuple[str, int]:
    """Carry it out; returns the text to print and the exit code."""
    choice = prefix_in_use(args.prefix)
    found = versions()
    findings = diagnose(choice.prefix)
    faults = sum(finding.level == "fault" for finding in findings)
    code = 1 if faults else 0
    if args.json:
        plain = [finding.as_dict() for finding in findings]
        return as_json({"prefix": choice.prefix, "versions": found, "faults": faults, "findings": plain}), code
    installed = ((name, version) for name, version in found.items() if version is not None)
    missing = [name for name, version in found.items() if version is None]
    lines = [settings.headline(choice), "", "versions"]
    lines.append(columns(("distribution", "version"), list(installed)))
    if missing:
        lines.append(wrapped(", ".join(missing), "  not installed: ", "    "))
    lines += ["", "findings", *(_entry(finding, args.verbose) for finding in findings)]
    notes = sum(finding.level == "note" for finding in findings)
    lines += ["", f"faults: {faults}, notes: {notes}"]
    return "\n".join(lines), code


def versions() -> dict[str, str | None]:
    """Distribution to version, None when it is not installed; from metadata, nothing is imported."""
    vendors = {point.dist.name for point in entry_points(group=VENDOR_GROUP) if point.dist}
    found: dict[str, str | None] = {"python": platform.python_version()}
    found.update({name: installed_version(name) for name in (*_DISTRIBUTIONS, *sorted(vendors))})
    found["fl-dispatch"] = found["fl-dispatch"] or f"{fl_dispatch.__version__} (from source, not installed)"
    return found


def _entry(finding: Finding, verbose: bool) -> str:
    lines = [wrapped(f"{finding.subject}: {finding.text}", f"  {finding.level:<6}", " " * 10)]
    if finding.hint:
        lines.append(wrapped(finding.hint, " " * 8 + "hint: ", " " * 14))
    if verbose and finding.detail:
        lines.append(textwrap.indent(finding.detail.rstrip(), " " * 8 + "| "))
    return "\n".join(lines)
