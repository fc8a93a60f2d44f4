# SPDX-License-Identifier: Apache-2.0
"""Real weights served by every implementation: log-probabilities against a float32 run, and the calls that prove who ran.

    python benchmarks/gpu/logits.py --framework sglang --model DIR --site DIR --own DIR --out DIR

Every engine gets the same prompts, gives the log-probability of each of their tokens (teacher-forced) and generates 32 more
greedily, in one batch. The float32 run then scores the same sequences, those with the engine's own continuation. Writes
``logits-FRAMEWORK.json`` and ``.md``; the exit status is 1 if an engine is outside of the bounds or another implementation ran.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines import HERE, VLLM_VARIABLES, Engine, EngineError, all_ready, exit_on_terminate, stop_all
from policies import policy_file, printed_table
from serve import versions

PROMPTS = HERE.parents[1] / "examples" / "smollm2_greedy_fp32.json"
NEW = 32
OPERATORS = ("rms_norm", "rotary_embedding", "silu_and_mul")
#: Of an engine's absolute error, by the error of the framework itself in the same mode: (factor, and what is added).
MEAN, MAX = (1.25, 0.002), (1.5, 0.05)
#: So much of the positions may have another most probable token than the framework itself has wrong.
TOP = 0.03
#: No engine may be further off, the framework itself included.
LIMIT = 0.1


@dataclass(frozen=True)
class Setup:
    """One engine.

    Args:
        settings: without their prefix; None is an engine without this repository's packages.
        wanted: operator to the implementation that must have run, empty where that is not fixed.
    """

    settings: Mapping[str, str] | None
    wanted: Mapping[str, str] = field(default_factory=dict)


def setups(framework: str) -> dict[str, dict[str, Setup]]:
    """Mode to engines; the first of each is the framework itself."""
    flagos, vendor, reference = (dict.fromkeys(OPERATORS, name) for name in ("flagos", "vendor.cuda", "reference"))
    if framework == "vllm":
        # It rounds its norms in a way that neither FlagGems nor sgl_kernel has.
        flagos["rms_norm"] = vendor["rms_norm"] = "reference"
    found = {
        "native": Setup(None),
        "flagos": Setup({}, flagos),
        "vendor": Setup({"PREFER": "vendor"}, vendor),
        "reference": Setup({"PREFER": "reference"}, reference),
    }
    if framework == "sglang":
        return {"eager": found, "CUDA graphs": found}
    return {"eager": found, "compiled": {**found, "tuned": Setup({"CONFIG": "fl-tuned-vllm.yaml"})}}


def prompts() -> list[list[int]]:
    """Each example's prompt and answer with the next one's behind it."""
    examples = json.loads(PROMPTS.read_text(encoding="utf-8"))["prompts"]
    texts = [example["prompt_ids"] + example["output_ids"] for example in examples]
    return [text + following for text, following in zip(texts, texts[1:] + texts[:1], strict=True)]


def report_of(path: Path, wanted: Mapping[str, str], seconds: float = 10.0) -> dict[str, Any]:
    """The report of the one worker, once it has the operators' calls (a worker writes twice a second)."""
    file = path.with_name(f"{path.stem}.rank0{path.suffix}")
    deadline = time.monotonic() + seconds
    while True:
        report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"operators": []}
        served = {row["operator"] for row in report["operators"] if row["calls"] + row["graph_sites"]}
        if served >= set(wanted) or time.monotonic() > deadline:
            return report
        time.sleep(0.2)


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


def outside(found: Mapping[str, float], native: Mapping[str, float]) -> list[str]:
    """The bounds that an engine's errors break."""
    broken = []
    for kind in ("", "generated_"):
        for name, (factor, added) in (("mean", MEAN), ("max", MAX)):
            bound = factor * native[kind + name] + added
            if found[kind + name] > bound:
                broken.append(f"{kind + name} {found[kind + name]:.4f} is above {bound:.4f}")
        if found[f"{kind}mean"] > LIMIT:
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
        f"{MEAN[0]} times native's in the same mode + {MEAN[1]}, largest {MAX[0]} times + {MAX[1]}, the same most probable token",
        f"as float32 at no more than {TOP:.0%} fewer positions than native, and no mean above {LIMIT}.",
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
    lines += [f"\n{name} is missing: {why}" for name, why in result["failed"].items()]
    return "\n".join([*lines, ""])


def ran(report: Mapping[str, Any]) -> list[list[Any]]:
    """The rows of a report, those left to the framework too."""
    keep = ("operator", "layer_class", "layers", "calls", "graph_sites", "implementation")
    left = [
        [r["operator"], r["layer_class"], r["layers"], 0, 0, f"(own: {r['reason']})"]
        for r in report.get("left_to_framework", ())
    ]
    return [[row[key] for key in keep] for row in report["operators"]] + left


def collect(arguments: Any, failed: dict[str, str]) -> list[dict[str, Any]]:
    """Start all engines together, ask each, and end them: rows of mode, engine, scores, report and problems so far."""
    framework = arguments.framework
    prefix = "SGLANG_FL_" if framework == "sglang" else "VLLM_FL_"
    script = "engine.py" if framework == "sglang" else "vllm_engine.py"
    base = {} if framework == "sglang" else {**VLLM_VARIABLES}
    options = ["--model", str(arguments.model)]
    options += (
        ["--set", "max_total_tokens=8192"] if framework == "sglang" else ["--set", f"kv_cache_memory_bytes={1 << 30}"]
    )
    options += [word for pair in arguments.extra for word in ("--set", pair)]
    reports = (arguments.out / "reports").resolve()
    reports.mkdir(exist_ok=True)
    started: dict[str, tuple[str, str, Setup, Path, Engine]] = {}
    rows: list[dict[str, Any]] = []
    try:
        for mode, engines in setups(framework).items():
            for name, setup in engines.items():
                if arguments.engines and name not in arguments.engines.split(","):
                    continue
                label = f"{name}, {mode}, logits {framework}"
                report = reports / f"{name}-{mode}-{framework}.json".replace(" ", "-")
                variables = {prefix + key: value for key, value in (setup.settings or {}).items()}
                if setup.settings is not None:
                    variables[f"{prefix}REPORT"] = str(report)
                if f"{prefix}CONFIG" in variables:
                    variables[f"{prefix}CONFIG"] = str(
                        (policy_file(variables[f"{prefix}CONFIG"], arguments.out) or Path()).resolve()
                    )
                own = setup.settings is not None
                engine = Engine(
                    label, own, mode == "eager", {**base, **variables}, arguments, *options, script=script, wait=False
                )
                started[label] = (mode, name, setup, report, engine)
        for engine in all_ready([entry[-1] for entry in started.values()], failed):
            mode, name, setup, path, _ = started[engine.name]
            row: dict[str, Any] = {"mode": mode, "engine": name, "ran": [], "problems": []}
            try:
                engine.ask({"score": prompts(), "new": NEW})
                row["scores"] = engine.scores()
            except EngineError as error:
                print(error, flush=True)
                failed[engine.name] = str(error).splitlines()[0]
                continue
            if setup.settings is None:
                row["problems"] = ["has a table of dispatched layers"] if printed_table(engine.text()) else []
            else:
                report = report_of(path, setup.wanted)
                wanted = (
                    dict.fromkeys(OPERATORS, arguments.wanted) if arguments.wanted and setup.wanted else setup.wanted
                )
                row.update(ran=ran(report), problems=not_as_wanted(report, wanted) if wanted else [])
            rows.append(row)
    finally:
        stop_all(entry[-1] for entry in started.values())
    return rows


def exact(arguments: Any, sequences: list[list[int]]) -> list[dict[str, Any]]:
    """What float32 says, in a process of its own."""
    asked, answered = (
        arguments.out / f"oracle-{arguments.framework}-{name}.json" for name in ("sequences", "logprobs")
    )
    asked.write_text(json.dumps(sequences), encoding="utf-8")
    environ = {**os.environ, "PYTHONPATH": str(arguments.oracle_site or arguments.site)}
    subprocess.run(
        [sys.executable, str(HERE / "oracle.py"), str(arguments.model), str(asked), str(answered)],
        env=environ,
        check=True,
    )
    found: list[dict[str, Any]] = json.loads(answered.read_text(encoding="utf-8"))
    return found


def judge(rows: list[dict[str, Any]], arguments: Any) -> None:
    """Give every row its errors and problems; the scores go."""
    texts = prompts()
    sequences = [text + score["output_ids"] for row in rows for text, score in zip(texts, row["scores"], strict=True)]
    unique = [list(sequence) for sequence in dict.fromkeys(map(tuple, sequences))]
    by_sequence = dict(zip(map(tuple, unique), exact(arguments, unique), strict=True))
    for row in rows:
        scores = row.pop("scores")
        truths = [by_sequence[tuple(text + score["output_ids"])] for text, score in zip(texts, scores, strict=True)]
        row["errors"] = errors(scores, truths, texts)
    for row in rows:
        native = next(
            (other["errors"] for other in rows if other["mode"] == row["mode"] and other["engine"] == "native"), None
        )
        row["problems"] += outside(row["errors"], native) if native else ["no native engine to compare with"]


def main() -> int:
    """Serve, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for folder in ("site", "own", "out", "model"):
        parser.add_argument(f"--{folder}", type=Path, required=True)
    parser.add_argument("--framework", choices=("sglang", "vllm"), default="sglang")
    parser.add_argument("--oracle-site", type=Path, help="packages of the float32 run; those of the engines by default")
    parser.add_argument("--engines", default="", help="only these, by comma")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=JSON", dest="extra", help="for every engine"
    )
    parser.add_argument("--wanted", help="one implementation for all operators, on a machine without the others")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    exit_on_terminate()
    failed: dict[str, str] = {}
    rows = collect(arguments, failed)
    (arguments.out / f"logits-{arguments.framework}-raw.json").write_text(json.dumps(rows) + "\n", encoding="utf-8")
    judge(rows, arguments)
    result: dict[str, Any] = {
        "framework": "SGLang" if arguments.framework == "sglang" else "vLLM",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": f"python3 benchmarks/gpu/logits.py --framework {arguments.framework}",
        "versions": versions(arguments),
        "engines": rows,
        "failed": failed,
    }
    (arguments.out / f"logits-{arguments.framework}.json").write_text(
        json.dumps(result, indent=1) + "\n", encoding="utf-8"
    )
    (arguments.out / f"logits-{arguments.framework}.md").write_text(table(result), encoding="utf-8")
    print(table(result), flush=True)
    return 1 if failed or not rows or any(row["problems"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
