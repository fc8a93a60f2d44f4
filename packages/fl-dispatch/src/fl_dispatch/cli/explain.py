# SPDX-License-Identifier: Apache-2.0
"""``fl-dispatch explain OP``: which implementation would serve an operator, and why not the others."""

from __future__ import annotations

import argparse
from typing import Any

from fl_dispatch.adapters import CORE_PREFIX
from fl_dispatch.cli import settings
from fl_dispatch.cli.text import as_json, wrapped
from fl_dispatch.errors import ConfigError, did_you_mean
from fl_dispatch.types import OpImpl

_SHORT_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}


def add_parser(subparsers: Any) -> None:
    """Add this command to the command line."""
    parser = subparsers.add_parser(
        "explain",
        help="which implementation an operator would get, and why",
        description="Decides for one operator as a worker would, as far as that can be said without a layer, shows every "
        "candidate with the reason it is taken or left, and exits with 1 when nothing may run. Imports the vendors that "
        "the settings allow.",
    )
    parser.add_argument("operator", metavar="OP", help="an operator, for example rms_norm (`fl-dispatch list` has all)")
    parser.add_argument("--dtype", help="of the input, for example bfloat16 (default: not known, excludes nothing)")
    parser.add_argument("--device", help="for example cuda (default: the accelerator of this machine, else cpu)")
    parser.add_argument(
        "--policy",
        metavar="FILE|SETTINGS",
        help="decide as if this YAML file, or settings such as 'prefer=vendor,strict=1', were set besides what the "
        "environment sets",
    )
    settings.add_common_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> tuple[str, int]:
    """Carry it out; returns the text to print and the exit code."""
    from fl_dispatch.facts import facts_for
    from fl_dispatch.manager import OpManager
    from fl_dispatch.native import native_impl

    choice, config = settings.read(args)
    manager = OpManager(policy=config.policy)
    # Names are checked before any vendor is asked anything.
    manager.registry.spec(args.operator)
    dtype = dtype_name(args.dtype)
    device = args.device.partition(":")[0] if args.device else manager.device_type
    # A worker of a framework has a method of its own; a program that uses the core by itself has none.
    native = None if choice.prefix == CORE_PREFIX else native_impl(args.operator)
    buckets = config.policy.buckets(args.operator) or ((None, config.policy),)
    parts = [
        (bound, manager.select(args.operator, facts_=facts_for(device, dtype), native=native, policy=policy))
        for bound, policy in buckets
    ]
    selection = parts[-1][1]
    unused = [record for record in manager.vendors if record.status != "registered"]
    code = 0 if all(part.chosen for _, part in parts) else 1
    if args.json:
        vendors = [record.as_dict() for record in unused]
        by_tokens = [{"up_to": bound, **part.as_dict()} for bound, part in parts] if len(parts) > 1 else []
        found = {"prefix": choice.prefix, **selection.as_dict(), "by_tokens": by_tokens}
        return as_json({**found, "vendors_not_fully_used": vendors}), code
    lines = [settings.headline(choice)]
    for bound, part in parts:
        head, *candidates = part.describe().splitlines()
        if len(parts) > 1:
            lines.append("more tokens:" if bound is None else f"up to {bound} tokens:")
        lines.append(wrapped(head, "", "  "))
        indent = " " * (max((len(c.impl.impl_id) for c in part.candidates), default=0) + 6)
        lines += [wrapped(line, "", max(indent, " " * 30, key=len)) for line in candidates]
    for candidate in selection.candidates:
        if candidate.accepted and candidate.impl.honours:
            lines.append(wrapped(_limits(candidate.impl), "  note: "))
    for record in unused:
        who = f"vendor {record.name} ({record.distribution} {record.version})"
        lines.append(wrapped(f"{who} is {record.status}: {record.reason}", "  note: "))
    return "\n".join(lines), code


def _limits(impl: OpImpl) -> str:
    """What a layer must have, which this command has none of."""
    wanted = ", ".join(
        f"{field}={' or '.join(sorted(map(repr, values)))}" for field, values in sorted(impl.honours.items())
    )
    return f"{impl.impl_id} takes only layers with {wanted}; the table of a worker shows which of a model's have it"


def dtype_name(word: str | None) -> str | None:
    """The canonical name: ``half`` and ``fp16`` are ``float16``; raises ConfigError with the closest name."""
    if word is None:
        return None
    import torch

    name = _SHORT_DTYPES.get(word, word.removeprefix("torch."))
    known = {key: value for key in dir(torch) if isinstance(value := getattr(torch, key), torch.dtype)}
    if name not in known:
        raise ConfigError(f"--dtype: torch has no dtype {word!r}; {did_you_mean(name, known)}")
    return str(known[name]).removeprefix("torch.")
