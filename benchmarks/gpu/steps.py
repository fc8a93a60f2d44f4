# SPDX-License-Identifier: Apache-2.0
"""A step of decoding in eager mode with the bound layers and with the framework's own methods, taking turns within one engine.

    python benchmarks/gpu/steps.py --site DIR --own DIR --out DIR [--framework vllm] [--seconds 20] [--by-operator]

For what engines that take turns cannot tell apart: see ``alternating.py``. Writes ``steps.json`` and ``steps.md``, for vLLM
``vllm-steps``.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from alternating import CYCLE, TIMED, VARIABLE
from engines import SETTLE_SECONDS, Engine, EngineError, exit_on_terminate, stop_all
from figures import layers, short_name
from groups import group_of, listed, note_layers, place, start_group
from results import device, headed, versions, write

PROMPT = 16


def plugin_folder(folder: Path) -> Path:
    """A folder that makes ``alternating.py`` a plug-in of both frameworks for processes that have it on their import path."""
    info = folder / "fl_alternating-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fl-alternating\nVersion: 1.0\n", encoding="utf-8")
    entries = {"sglang.srt.plugins": "register", "vllm.general_plugins": "register_in_vllm"}
    text = "".join(f"[{group}]\nfl_alternating = alternating:{name}\n" for group, name in entries.items())
    (info / "entry_points.txt").write_text(text, encoding="utf-8")
    return folder


def cycles(lines: Iterable[Mapping[str, Any]], requests: int) -> list[dict[str, Mapping[str, Any]]]:
    """The whole cycles of steps with so many requests: way to its line."""
    found: dict[tuple[int, int], dict[str, Mapping[str, Any]]] = {}
    for line in lines:
        if line["requests"] == requests:
            found.setdefault((line["generation"], line["turn"] // len(CYCLE)), {})[line["way"]] = line
    return [ways for ways in found.values() if set(ways) == set(CYCLE)]


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median with its 95 % interval by order statistics, which supposes nothing of the distribution.

    Not a number where there are fewer than six values, which give no such interval.
    """
    ordered, count = sorted(values), len(values)
    if count < 6:
        return statistics.median(ordered) if ordered else math.nan, math.nan, math.nan
    # The largest rank so that fewer values than it are below the median with a probability of at most 2.5 %.
    tail, rank = 0.0, 0
    while (tail := tail + math.comb(count, rank) / 2**count) <= 0.025:
        rank += 1
    return statistics.median(ordered), ordered[rank - 1], ordered[count - rank]


def summary(lines: Sequence[Mapping[str, Any]], requests: int) -> dict[str, Any]:
    """What one engine's lines say of steps with so many requests."""
    ways = cycles(lines, requests)
    whole = [{way: line["us"] for way, line in cycle.items()} for cycle in ways]
    return {
        "requests": requests,
        "cycles": len(whole),
        "layers": max((line["layers"] for line in lines), default=0),
        "native_us": statistics.median(times["native"] for times in whole) if whole else math.nan,
        # Speeds, so below 1 is slower, as in the tables of whole engines.
        "ratio": median_interval([times["native"] / times["bound"] for times in whole]),
        "again": median_interval([times["native"] / times["again"] for times in whole]),
        "more_us": median_interval([more(times) for times in whole]),
        "operators": by_operator([{way: line.get("operators", {}) for way, line in cycle.items()} for cycle in ways]),
    }


def more(times: Mapping[str, float]) -> float:
    """What the bound way of a cycle takes longer than the mean of the two others."""
    return times["bound"] - (times["native"] + times["again"]) / 2


def by_operator(whole: Sequence[Mapping[str, Mapping[str, Sequence[float]]]]) -> list[dict[str, Any]]:
    """What each operator's calls cost the host.

    Args:
        whole: cycles, each way to operator to calls a step and microseconds a call.
    """
    rows = []
    for operator in sorted({name for cycle in whole for found in cycle.values() for name in found}):
        ours = [{way: found[operator] for way, found in cycle.items() if operator in found} for cycle in whole]
        ours = [cycle for cycle in ours if len(cycle) == len(CYCLE)]
        times = [{way: us for way, (_, us) in cycle.items()} for cycle in ours]
        if times:
            rows.append(
                {
                    "operator": operator,
                    "calls": statistics.median(calls for cycle in ours for calls, _ in cycle.values()),
                    "native_us": statistics.median((one["native"] + one["again"]) / 2 for one in times),
                    "bound_us": statistics.median(one["bound"] for one in times),
                    "more_us": median_interval([more(one) for one in times]),
                }
            )
    return rows


def table(result: Mapping[str, Any]) -> str:
    """The result as Markdown."""
    lines = [f"# {result['title']}, {result['date']}", "", f"`{result['command']}`", "", result["setting"], ""]
    lines += [", ".join(f"{name} {version}" for name, version in result["versions"].items()) + ".", ""]
    lines += [
        "Speed against the framework's own methods in the same cycle, medians with 95 % intervals by order statistics.",
        "`native again`: its own methods a second time. `more`: microseconds that a step with the bound layers takes longer.",
        "",
        "| engine | requests | bound layers | native, us a step | ratio to native | native again | more, us | cycles |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, rows in result["engines"].items():
        for row in rows:
            ratio, again = (f"{m:.3f} ({low:.3f} to {high:.3f})" for m, low, high in (row["ratio"], row["again"]))
            m, low, high = row["more_us"]
            lines.append(
                f"| {name} | {row['requests']} | {row['layers']} | {row['native_us']:,.0f} | {ratio} | {again} | "
                f"{m:+,.0f} ({low:+,.0f} to {high:+,.0f}) | {row['cycles']} |"
            )
    operators = [
        f"| {name} | {row['requests']} | {one['operator']} | {one['calls']:g} | {one['native_us']:.2f} | "
        f"{one['bound_us']:.2f} | {{:+.2f}} ({{:+.2f}} to {{:+.2f}}) |".format(*one["more_us"])
        for name, rows in result["engines"].items()
        for row in rows
        for one in row["operators"]
    ]
    if operators:
        lines += [
            "",
            "Host time within the bound layers' calls, of which both ways are timed alike; steps are longer by the timing.",
            "",
            "| engine | requests | operator | calls a step | native, us a call | bound, us a call | more, us a call |",
            "|---|---:|---|---:|---:|---:|---:|",
            *operators,
        ]
    lines += ["", *(f"{name} is missing, {why}" for name, why in result["failed"].items())]
    return "\n".join([*lines, *layers(result), ""])


def serve(engine: Engine, requests: int, new: int, seconds: float) -> None:
    """Let one engine decode for so long; the prefill of the last, shortest job has the lines written."""
    message = {"requests": requests, "prompt": PROMPT, "new": new, "repeat": 1}
    end = time.monotonic() + seconds
    engine.resume()
    time.sleep(SETTLE_SECONDS)
    while True:
        engine.ask(message)
        engine.seconds()
        if time.monotonic() >= end:
            break
    engine.ask({**message, "new": 1})
    engine.seconds()
    engine.pause()


def attempt(engine: Engine, counts: Iterable[int], seconds: float, arguments: Any, failed: dict[str, str]) -> bool:
    """``serve`` with each number of requests; False and the reason in ``failed`` where the engine died."""
    try:
        for requests in counts:
            serve(engine, requests, arguments.new, seconds)
    except EngineError as error:
        print(error, flush=True)
        failed[engine.name] = error.reason
        return False
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Start the engines, let each decode in its turn, write what came out; 1 where something is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for folder in ("site", "own", "out"):
        parser.add_argument(f"--{folder}", type=Path, required=True)
    parser.add_argument("--framework", choices=("sglang", "vllm"), default="sglang")
    parser.add_argument("--engines", default="tuned,vendor,flagos")
    parser.add_argument("--requests", default="64,1")
    parser.add_argument("--new", type=int, default=128, help="tokens to generate for each request")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="of decoding, for each engine and number of requests"
    )
    parser.add_argument("--by-operator", action="store_true", help="time the calls of each operator's layers too")
    parser.add_argument("--engine-options", default="[]", help="JSON list of further arguments of the engine script")
    arguments = parser.parse_args(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    exit_on_terminate()
    scratch = Path(tempfile.mkdtemp(prefix="steps-"))
    with_plugin = copy.copy(arguments)
    with_plugin.engine_options = json.loads(arguments.engine_options)
    with_plugin.own = os.pathsep.join([str(plugin_folder(scratch / "plugin")), str(arguments.own)])
    name = "steps" if arguments.framework == "sglang" else "vllm-steps"
    group = group_of(arguments.framework, True, listed(arguments.engines))
    found = versions(arguments.own, arguments.site)
    result = headed(
        "steps.py",
        f"--framework {arguments.framework} --engines {arguments.engines} --requests {arguments.requests} --new {arguments.new} "
        f"--seconds {arguments.seconds:g}{' --by-operator' * arguments.by_operator}",
        title=f"{group.title} {found.get(group.framework)}, steps of decoding in eager mode",
        setting=f"The model of engine.py on {device()}.",
        versions=found,
        engines={},
        choices={},
        failed={},
        problems=[],
    )
    files = {short: scratch / f"{short}.jsonl" for short in group.engines}
    timed = {TIMED: "1"} if arguments.by_operator else {}
    further = {short: {VARIABLE: str(file), **timed} for short, file in files.items()}
    up, policies = start_group(group, name, with_plugin, result["failed"], further)
    note_layers(result, group, up, policies)
    started = list(up)
    try:
        for engine in up:
            engine.pause()
        counts = list(map(int, arguments.requests.split(",")))
        for engine in list(up):
            if not attempt(engine, counts, 0.0, arguments, result["failed"]):  # compiles
                up.remove(engine)
        place(result, up)
        for engine in up:
            if not attempt(engine, counts, arguments.seconds, arguments, result["failed"]):
                continue
            short = short_name(engine.name)
            text = files[short].read_text(encoding="utf-8") if files[short].exists() else ""
            lines = [json.loads(line) for line in text.splitlines()]
            result["engines"][short] = [summary(lines, requests) for requests in counts]
            write(arguments.out, name, result, table(result))
    finally:
        stop_all(started)
    print(table(result), flush=True)
    empty = [short for short, rows in result["engines"].items() if not all(row["cycles"] for row in rows)]
    print("no whole cycle: " + ", ".join(empty) if empty else "every engine has whole cycles")
    return 1 if empty or result["failed"] or result["problems"] or len(result["engines"]) < len(files) else 0


if __name__ == "__main__":
    sys.exit(main())
