# SPDX-License-Identifier: Apache-2.0
"""How far log-probabilities may be from those of float32, and what a report must say of who computed them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

#: Of an engine's absolute error, by the error of the framework itself: (factor, and what is added).
MEAN, MAX = (1.25, 0.002), (1.5, 0.05)
#: So much of the positions may have another most probable token than the framework itself has wrong.
TOP = 0.03
#: No engine may be further off, the framework itself included.
LIMIT = 0.1


def not_as_wanted(report: Mapping[str, Any], wanted: Mapping[str, str]) -> list[str]:
    """What a report says against the expected implementations: others with calls, none with any, calls passed on."""
    problems = []
    for operator, implementation in wanted.items():
        rows = [row for row in report["operators"] if row["operator"] == operator]
        ran = {row["implementation"] for row in rows if row["calls"] + row["graph_sites"]}
        if ran != {implementation}:
            problems.append(f"{operator}: {', '.join(sorted(ran)) or 'nothing'} ran instead of {implementation}")
        problems += [
            f"{operator}: calls served by others, {row['served_by_others']}" for row in rows if row["served_by_others"]
        ]
    problems += [
        f"{row['layers']} x {row['layer_class']} left: {row['reason']}" for row in report.get("left_to_framework", ())
    ]
    return problems


def errors(scores: list[dict[str, Any]], exact: list[dict[str, Any]], texts: list[list[int]]) -> dict[str, float]:
    """Absolute differences of log-probabilities of prompt and generated tokens; how often the most probable token is equal."""
    forced, generated, same = [], [], []
    for score, truth, text in zip(scores, exact, texts, strict=True):
        count = len(text) - 1
        forced += [abs(a - b) for a, b in zip(score["input"], truth["logprobs"][:count], strict=True)]
        generated += [abs(a - b) for a, b in zip(score["output"], truth["logprobs"][count:], strict=True)]
        same += [a == b for a, b in zip(score["input_top"], truth["top"][:count], strict=True)]
    return {
        "tokens": len(forced),
        "mean": statistics.mean(forced),
        "max": max(forced),
        "generated": len(generated),
        "generated_mean": statistics.mean(generated),
        "generated_max": max(generated),
        "top": statistics.mean(same),
    }


def widest(natives: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The framework's own errors over all of its modes: how far off its own kernels may be, one set or another.

    The largest of some hundred differences is chance, more so where engines generated different texts: what any mode shows for
    either kind of tokens counts for both.
    """
    found = {name: max(native[name] for native in natives) for name in ("mean", "generated_mean")}
    largest = max(native[name] for native in natives for name in ("max", "generated_max"))
    return {**found, "max": largest, "generated_max": largest, "top": min(native["top"] for native in natives)}


def outside(found: Mapping[str, float], native: Mapping[str, float]) -> list[str]:
    """The bounds that an engine's errors break."""
    broken = []
    for kind in ("", "generated_"):
        for name, (factor, added) in (("mean", MEAN), ("max", MAX)):
            bound = factor * native[kind + name] + added
            if not found[kind + name] <= bound:  # also what is not a number
                broken.append(f"{kind + name} {found[kind + name]:.4f} is above {bound:.4f}")
        if not found[f"{kind}mean"] <= LIMIT:
            broken.append(f"{kind}mean {found[f'{kind}mean']:.4f} is above {LIMIT}")
    if found["top"] < native["top"] - TOP:
        broken.append(f"most probable token equal at {found['top']:.3f}, the framework itself at {native['top']:.3f}")
    return broken


def table(result: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        f"# Log-probabilities of a real model, {result['framework']}, {result['date']}",
        "",
        f"`{result['command']}`",
        "",
    ]
    lines += [", ".join(f"{name} {version}" for name, version in result["versions"].items()) + ".", ""]
    lines += [
        "SmolLM2-135M-Instruct in bfloat16 against transformers in float32 with the same weights: absolute differences of natural",
        "log-probabilities of the prompts' tokens (teacher-forced) and of the generated ones. Bounds: mean up to "
        f"{MEAN[0]} times native's + {MEAN[1]}, largest {MAX[0]} times + {MAX[1]}, the same most probable token as float32 at",
        f"no more than {TOP:.0%} fewer positions than native, and no mean above {LIMIT}; native's are the widest of its modes,",
        "and its largest that of either kind of tokens.",
        "",
        "| mode | engine | tokens | mean | largest | same most probable | generated | mean | largest | |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for row in result["engines"]:
        e = row["errors"]
        cells = [row["mode"], row["engine"], f"{e['tokens']}", f"{e['mean']:.4f}", f"{e['max']:.3f}", f"{e['top']:.1%}"]
        cells += [f"{e['generated']}", f"{e['generated_mean']:.4f}", f"{e['generated_max']:.3f}"]
        lines.append(f"| {' | '.join(cells)} | {'; '.join(row['problems']) or 'ok'} |")
    lines += ["", "Calls (outside of graphs) and places in compiled graphs:", ""]
    lines += [
        "| mode | engine | operator | layer class | layers | calls | in graphs | implementation |",
        "|---|---|---|---|---:|---:|---:|---|",
    ]
    for row in result["engines"]:
        for site in row["ran"]:
            lines.append(f"| {' | '.join(map(str, [row['mode'], row['engine'], *site]))} |")
    lines += [f"\n{name} is missing, {why.removeprefix(f'{name}: ')}" for name, why in result["failed"].items()]
    return "\n".join([*lines, ""])


def ran(report: Mapping[str, Any]) -> list[list[Any]]:
    """The rows of a report, those left to the framework too."""
    keep = ("operator", "layer_class", "layers", "calls", "graph_sites", "implementation")
    left = [
        [r["operator"], r["layer_class"], r["layers"], 0, 0, f"(own: {r['reason']})"]
        for r in report.get("left_to_framework", ())
    ]
    return [[row[key] for key in keep] for row in report["operators"]] + left
