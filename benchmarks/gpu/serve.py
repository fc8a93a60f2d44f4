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
import datetime
import functools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engines import exit_on_terminate, stop_all
from figures import Rates, table
from groups import GROUPS, note_layers, place, start_group
from placement import cpu_times, stolen_share
from turns import measure

DISTRIBUTIONS = (
    "torch",
    "triton",
    "flag-gems",
    "sglang-kernel",
    "flashinfer-python",
    "sglang",
    "vllm",
    "fl-dispatch",
    "fl-vendor-cuda",
    "sglang-fl",
    "vllm-fl-adapter",
)
_VERSIONS = """
import json, sys
from importlib.metadata import PackageNotFoundError, version
found = {"python": sys.version.split()[0]}
for name in sys.argv[1:]:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def versions(arguments: Any) -> dict[str, str]:
    """Of what the engines run."""
    path = f"{arguments.own}:{arguments.site}"
    run = [sys.executable, "-c", _VERSIONS, *DISTRIBUTIONS]
    done = subprocess.run(run, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def device() -> str:
    """The GPU's name, as the driver has it."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "no NVIDIA GPU"
    return done.stdout.partition("\n")[0].strip()


def run_group(name: str, arguments: Any) -> bool:
    """Start, measure, check and write one group; True if nothing is missing or wrong."""
    group = GROUPS[name]
    slug = re.sub(r"\W+", "-", name).lower()
    version = versions(arguments)
    turns = [f"of {name} the best of {job.turns} turns a round" for name, job in group.jobs.items() if job.turns > 1]
    framework = f"{group.title} {version.get(group.framework)}"
    result: dict[str, Any] = {
        "title": f"{framework} end to end, {name}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": f"python3 benchmarks/gpu/{Path(__file__).name} {shlex.join(arguments.shown)}",
        "setting": f"{framework}, {arguments.model_name}, bfloat16, {device()}; engines alive on it at once, measured in turns"
        f"{''.join(f'; {text}' for text in turns)}.",
        "versions": version,
        "groups": {},
        "turns": {},
        "choices": {},
        "failed": {},
        "problems": [],
    }

    def write(rates: Rates | None = None) -> None:
        result["groups"] = {} if rates is None else {name: rates}
        (arguments.out / f"serve-{slug}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        (arguments.out / f"serve-{slug}.md").write_text(table(result), encoding="utf-8")

    engines, files = start_group(group, name, arguments, result["failed"])
    try:
        note_layers(result, group, engines, files)
        write()
        if engines:
            before = cpu_times()
            rates = measure(
                engines,
                arguments.rounds,
                group.jobs,
                arguments.seconds,
                write,
                result["failed"],
                every_turn=result["turns"],
                warmed_up=functools.partial(place, result),
            )
            result["stolen"] = round(stolen_share(before, cpu_times()), 4)
            write(rates)
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
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--seconds", type=float, default=150.0, help="of measuring a group; the round that passes is the last"
    )
    arguments = parser.parse_args(argv)
    arguments.engine_options, arguments.model_name = [], "a Llama of 8B shape with random weights"
    arguments.shown = [
        "--groups",
        arguments.groups,
        "--rounds",
        f"{arguments.rounds}",
        "--seconds",
        f"{arguments.seconds:g}",
    ]
    arguments.out.mkdir(parents=True, exist_ok=True)
    exit_on_terminate()
    outcomes = [run_group(name, arguments) for name in arguments.groups.split(";")]
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
