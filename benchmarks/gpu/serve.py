# SPDX-License-Identifier: Apache-2.0
"""SGLang or vLLM end to end, without and with the dispatcher, all engines of a group alive at once and taking turns.

    python benchmarks/gpu/serve.py --site DIR --own DIR --out DIR [--groups NAME;...] [--rounds 10] [--seconds 150]

``site`` holds the framework and the kernels, ``own`` this repository's packages: engines without the dispatcher do not see them.
The engines of a group start together. While one is measured the others are stopped. Writes ``serve-GROUP.json`` and ``.md`` after
every round, and each engine's log. The exit status is 1 where an engine is missing, or a tuned one runs what its policy does
not say.
"""

from __future__ import annotations

import argparse
import functools
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engines import exit_on_terminate, stop_all
from figures import Rates, table
from groups import GROUPS, Group, listed, note_layers, place, start_group
from placement import cpu_times, stolen_share
from results import device, headed, versions, write
from turns import measure


def chosen(text: str, engines: str) -> dict[str, Group]:
    """The groups of these names with semicolons; only their first engine and these, with commas, where any are named."""
    found = {}
    for name in listed(text, "group", ";"):
        if name not in GROUPS:
            raise SystemExit(f"unknown group {name!r}; there are: {'; '.join(GROUPS)}")
        first, *_ = (group := GROUPS[name]).engines
        found[name] = group.only([first, *listed(engines)]) if engines else group
    return found


def run_group(name: str, group: Group, arguments: Any) -> bool:
    """Start, measure, check and write one group; True if nothing is missing or wrong."""
    slug = re.sub(r"\W+", "-", name).lower()
    version = versions(arguments.own, arguments.site)
    turns = [f"of {name} the best of {job.turns} turns a round" for name, job in group.jobs.items() if job.turns > 1]
    framework = f"{group.title} {version.get(group.framework)}"
    result = headed(
        "serve.py",
        shlex.join(arguments.shown),
        title=f"{framework} end to end, {name}",
        setting=f"{framework}, {arguments.model_name}, bfloat16, {device()}; engines alive on it at once, measured in turns"
        f"{''.join(f'; {text}' for text in turns)}.",
        versions=version,
        groups={},
        turns={},
        choices={},
        failed={},
        problems=[],
    )

    def note(rates: Rates | None = None) -> None:
        result["groups"] = {} if rates is None else {name: rates}
        write(arguments.out, f"serve-{slug}", result, table(result))

    engines, files = start_group(group, name, arguments, result["failed"])
    try:
        note_layers(result, group, engines, files)
        note()
        if engines:
            before = cpu_times()
            rates = measure(
                engines,
                arguments.rounds,
                group.jobs,
                arguments.seconds,
                note,
                result["failed"],
                every_turn=result["turns"],
                warmed_up=functools.partial(place, result),
            )
            result["stolen"] = round(stolen_share(before, cpu_times()), 4)
            note(rates)
    finally:
        stop_all(engines)
    print(table(result), flush=True)
    if not result["failed"] and not result["problems"]:
        return True
    print("\n".join([f"missing: {engine}" for engine in result["failed"]] + result["problems"]), flush=True)
    return False


def main(argv: Sequence[str] | None = None) -> int:
    """Group after group."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for folder in ("site", "own", "out"):
        parser.add_argument(f"--{folder}", type=Path, required=True)
    parser.add_argument("--groups", default="CUDA graphs;eager", help=f"of: {';'.join(GROUPS)}")
    parser.add_argument("--engines", default="", help="beside the first, names with commas; all by default")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--seconds", type=float, default=150.0, help="of measuring a group; the round that passes is the last"
    )
    arguments = parser.parse_args(argv)
    groups = chosen(arguments.groups, arguments.engines)
    arguments.engine_options, arguments.model_name = [], "a Llama of 8B shape with random weights"
    arguments.shown = [
        "--groups",
        arguments.groups,
        *(["--engines", arguments.engines] if arguments.engines else []),
        "--rounds",
        f"{arguments.rounds}",
        "--seconds",
        f"{arguments.seconds:g}",
    ]
    arguments.out.mkdir(parents=True, exist_ok=True)
    exit_on_terminate()
    outcomes = [run_group(name, group, arguments) for name, group in groups.items()]
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
