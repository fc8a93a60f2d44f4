# SPDX-License-Identifier: Apache-2.0
"""What a bound layer costs the host, beside the framework's own method and beside the implementation called by itself.

    python benchmarks/gpu/bridge.py --out DIR [--framework vllm] [--device cuda] [--prefer vendor]

Writes ``bridge.json`` and ``bridge.md``, for vLLM ``vllm-bridge``. The layers have the sizes of an 8B model, and 16 tokens, so that
the host is the limit. The three ways take turns in rounds of some milliseconds, each call among others as in a model; a difference
is the median of the differences within a round, as the speed of a host changes from second to second.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from groups import group_of
from results import headed, versions, write

from fl_dispatch import FrameworkLayer, OpManager, SelectionPolicy
from fl_dispatch.adapters import framework_layers
from fl_dispatch.facts import device_name
from fl_dispatch.tune.calls import handed_over
from fl_dispatch.tune.timing import Between, host_us_among_others

ROUNDS = 41
CALLS = 50
TOKENS = 16
OWN = "framework's method"
SIZES = {"hidden": 4096, "head_size": 128}
#: Case to operator and the arguments of the layer.
CASES: dict[str, tuple[str, Callable[[Any], tuple[Any, ...]]]] = {
    "silu_and_mul": ("silu_and_mul", lambda new: (new(2 * 14336),)),
    "rms_norm": ("rms_norm", lambda new: (new(4096),)),
    "rms_norm with residual": ("rms_norm", lambda new: (new(4096), new(4096))),
    "rotary_embedding": (
        "rotary_embedding",
        lambda new: (torch.arange(TOKENS, device=new(1).device), new(32 * 128), new(8 * 128)),
    ),
}


def ways(
    layers: Callable[..., FrameworkLayer], operator: str, arguments: tuple[Any, ...], device: str, prefer: str
) -> tuple[str, dict[str, Callable[[], Any]]]:
    """The implementation in effect, and how a layer is called: the framework's method, the bound one, the implementation by
    itself.
    """
    offered = layers(operator, SIZES, torch.bfloat16, device)
    layer = offered.layer
    manager = OpManager(policy=SelectionPolicy(prefer=(prefer,), strict=True), device_type=device)
    site = manager.bind(operator, layer, label="bridge")
    bound = offered.forward(site)
    implementation = site.impl
    if implementation is None:
        raise SystemExit(f"{operator}: nothing is in effect")
    call = functools.partial(bound, layer, *arguments)
    args, kwargs = handed_over(site, call)
    return implementation.impl_id, {
        OWN: functools.partial(offered.method, layer, *arguments),
        "bound layer": call,
        "implementation alone": functools.partial(implementation.fn, *args, **kwargs),
    }


def measure(layers: Callable[..., FrameworkLayer], case: str, device: str, prefer: str) -> dict[str, Any]:
    """One case: microseconds of each way, and what the bound layer is above the others."""
    operator, make = CASES[case]
    arguments = make(lambda width: torch.rand(TOKENS, width, dtype=torch.bfloat16, device=device))
    implementation, calls = ways(layers, operator, arguments, device, prefer)
    between = Between(device)
    for call in calls.values():
        for _ in range(CALLS):
            call()
    rounds: list[dict[str, float]] = []
    for number in range(ROUNDS):
        order = list(calls.items())[:: 1 if number % 2 else -1]
        rounds.append({name: host_us_among_others([call], CALLS, between) for name, call in order})
    return {
        "case": case,
        "implementation": implementation,
        "host_us": {name: round(statistics.median(one[name] for one in rounds), 2) for name in calls},
        "above_us": {
            name: round(statistics.median(one["bound layer"] - one[name] for one in rounds), 2)
            for name in calls
            if name != "bound layer"
        },
    }


def table(result: dict[str, Any]) -> str:
    """The results as Markdown."""
    rows = result["rows"]
    names = list(rows[0]["host_us"])
    above = list(rows[0]["above_us"])
    heads = ["layer", "implementation", *names, *(f"bound layer above {name}" for name in above)]
    lines = [
        f"# Host time of {result['framework']}'s bound layers on {result['versions']['device']}, {result['date']}",
        "",
        f"`{result['command']}`",
        "",
        f"Microseconds a call, {TOKENS} tokens in bfloat16; medians of {ROUNDS} rounds, differences within a round. Versions: "
        + ", ".join(f"{name} {value}" for name, value in result["versions"].items())
        + ".",
        "",
        f"| {' | '.join(heads)} |",
        "|---|---|" + "---:|" * (len(heads) - 2),
    ]
    for row in rows:
        cells = [*row["host_us"].values(), *(f"{value:+.2f}" for value in row["above_us"].values())]
        lines.append(f"| {row['case']} | {row['implementation']} | {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--framework", choices=("sglang", "vllm"), default="sglang")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--prefer", default="vendor")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    name = "bridge" if arguments.framework == "sglang" else "vllm-bridge"
    group = group_of(arguments.framework, False, ())
    layers = framework_layers(group.prefix)
    if layers is None:
        raise SystemExit(f"the adapter of {group.title} is not installed")
    result = headed(
        "bridge.py",
        f"--out DIR --framework {arguments.framework} --device {arguments.device} --prefer {arguments.prefer}",
        framework=group.title,
        versions={"device": device_name(arguments.device), **versions()},
        rows=[],
    )
    with torch.inference_mode():
        for case in CASES:
            result["rows"].append(measure(layers, case, arguments.device, arguments.prefer))
            write(arguments.out, name, result, table(result))
    print(table(result))


if __name__ == "__main__":
    main()
