# SPDX-License-Identifier: Apache-2.0
"""Host time and device time of every implementation of every operator, on this GPU, and the floor that memory sets.

    python benchmarks/gpu/micro.py --out DIR [--tokens 1,16,256,8192]

Writes ``micro.json`` and ``micro.md``. Shapes are those of an 8B model in bfloat16 (see ``cases.py``). Host time is what
a call keeps the host busy, the device idle enough to follow; device time is that of a call inside of a replayed CUDA
graph, over several sets of inputs so that they do not come out of the cache. Both are medians of rounds in which all
implementations take turns. ``floor`` is bytes that must move over the bandwidth measured in the same run; where all
sets fit into the cache, device time can be below it.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from cases import CASES, Case, ways
from results import headed, versions, write

from fl_dispatch.facts import device_name
from fl_dispatch.tune.timing import Replayed, bandwidth, host_us

ROUNDS = 7
HOST_CALLS = 100
#: Replayed inputs together are at least so large, or there are this many sets of them.
SPREAD_BYTES = 400e6
MAX_SETS = 64


def measure(case: Case, tokens: int, bytes_a_second: float) -> dict[str, Any]:
    """All implementations of one case at one number of tokens, taking turns."""
    moved = case.bytes_moved(tokens)
    sets = [case.inputs(tokens) for _ in range(max(1, min(MAX_SETS, round(SPREAD_BYTES / moved))))]
    host: dict[str, list[float]] = {}
    device: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    running: dict[str, tuple[Callable[[], Any], Replayed | None]] = {}
    for name, fn in ways(case, sets[0]).items():
        calls = [functools.partial(fn, one.obj, *one.args, **one.kwargs) for one in sets]
        try:
            for call in calls + calls[:5]:
                call()
            running[name] = calls[0], None if name.endswith("(bound)") else Replayed(calls)
        except Exception as error:  # noqa: BLE001  (a benchmark of whatever is installed: the error is its result)
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    for _ in range(ROUNDS):
        for name, (call, replayed) in running.items():
            host.setdefault(name, []).append(host_us(call, HOST_CALLS, "cuda"))
            if replayed is not None:
                device.setdefault(name, []).append(replayed.device_us())
    return {
        "case": case.name,
        "tokens": tokens,
        "sets": len(sets),
        "bytes": moved,
        "floor_us": moved / bytes_a_second * 1e6,
        "host_us": {name: round(statistics.median(times), 2) for name, times in host.items()},
        "device_us": {name: round(statistics.median(times), 2) for name, times in device.items()},
        "device_spread_us": {name: round(max(times) - min(times), 2) for name, times in device.items()},
        "failed": failed,
    }


def table(result: dict[str, Any]) -> str:
    """The results as Markdown: device time, with host time in brackets."""
    lines = [
        f"# Operators on {result['versions']['device']}, {result['date']}",
        "",
        f"`{result['command']}`",
        "",
        "Microseconds a call: on the device inside of a CUDA graph, and (in brackets) on the host in eager mode.",
        f"Medians of {ROUNDS} rounds. Memory bandwidth {result['bandwidth'] / 1e12:.2f} TB/s. Versions: "
        + ", ".join(f"{name} {value}" for name, value in result["versions"].items())
        + ".",
        "",
    ]
    names = list(dict.fromkeys(name for row in result["rows"] for name in (*row["host_us"], *row["failed"])))
    lines += [f"| case | tokens | floor | {' | '.join(names)} |", "|---|---:|---:|" + "---:|" * len(names)]
    for row in result["rows"]:
        cells = []
        for name in names:
            host, device = row["host_us"].get(name), row["device_us"].get(name)
            if host is None:
                cells.append("failed" if name in row["failed"] else "-")
            else:
                cells.append(f"({host:.1f})" if device is None else f"{device:.1f} ({host:.1f})")
        lines.append(f"| {row['case']} | {row['tokens']} | {row['floor_us']:.1f} | {' | '.join(cells)} |")
    failures = {f"{row['case']}, {name}: {why}" for row in result["rows"] for name, why in row["failed"].items()}
    return "\n".join([*lines, *(["", *sorted(failures)] if failures else []), ""])


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", default="1,16,64,256,1024,8192")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with torch.inference_mode():
        result = headed(
            "micro.py",
            f"--out DIR --tokens {arguments.tokens}",
            versions={"device": device_name("cuda"), **versions()},
            bandwidth=bandwidth("cuda"),
            rows=[],
        )
        for case in CASES:
            for tokens in map(int, arguments.tokens.split(",")):
                result["rows"].append(measure(case, tokens, result["bandwidth"]))
            # After every case: an error that the device does not survive takes no earlier figure with it.
            write(arguments.out, "micro", result, table(result))
    print(table(result))


if __name__ == "__main__":
    main()
