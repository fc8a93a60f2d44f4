# SPDX-License-Identifier: Apache-2.0
"""Real weights served by every implementation: log-probabilities against a float32 run, and the calls that prove who ran.

    python benchmarks/gpu/logits.py --framework sglang --model DIR --site DIR --own DIR --out DIR

Every engine gets the same prompts, gives the log-probability of each of their tokens (teacher-forced) and generates 32 more
greedily, in one batch. The float32 run then scores the same sequences, those with the engine's own continuation. Writes
``logits-FRAMEWORK.json`` and ``.md``; the exit status is 1 if an engine is outside of the bounds or another implementation ran.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bounds import errors, not_as_wanted, outside, ran, table, widest
from engines import HERE, Engine, EngineError, all_ready, exit_on_terminate, framework_variables, stop_all
from groups import listed
from policies import policy_file, printed_table
from results import device, headed, versions, write

PROMPTS = HERE.parents[1] / "examples" / "smollm2_greedy_fp32.json"
NEW = 32
OPERATORS = ("rms_norm", "rotary_embedding", "silu_and_mul")


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


def collect(arguments: Any, failed: dict[str, str]) -> list[dict[str, Any]]:
    """Start all engines together, ask each, and end them: rows of mode, engine, scores, report and problems so far."""
    framework = arguments.framework
    prefix = "SGLANG_FL_" if framework == "sglang" else "VLLM_FL_"
    script = "engine.py" if framework == "sglang" else "vllm_engine.py"
    options = ["--model", str(arguments.model)]
    options += (
        ["--set", "max_total_tokens=8192"] if framework == "sglang" else ["--set", f"kv_cache_memory_bytes={1 << 30}"]
    )
    options += [word for pair in arguments.extra for word in ("--set", pair)]
    reports = (arguments.out / "reports").resolve()
    reports.mkdir(exist_ok=True)
    only = listed(arguments.engines) if arguments.engines else None
    started: dict[str, tuple[str, str, Setup, Path, Engine]] = {}
    rows: list[dict[str, Any]] = []
    try:
        for mode, engines in setups(framework).items():
            for name, setup in engines.items():
                if only is not None and name not in only:
                    continue
                label = f"{name}, {mode}, logits {framework}"
                report = reports / f"{name}-{mode}-{framework}.json".replace(" ", "-")
                variables: dict[str, str] = {prefix + key: value for key, value in (setup.settings or {}).items()}
                if setup.settings is not None:
                    variables[f"{prefix}REPORT"] = str(report)
                if f"{prefix}CONFIG" in variables:
                    variables[f"{prefix}CONFIG"] = str(policy_file(variables[f"{prefix}CONFIG"], arguments.out))
                own = setup.settings is not None
                engine = Engine(
                    label,
                    own,
                    mode == "eager",
                    {**framework_variables(framework), **variables},
                    arguments,
                    *options,
                    script=script,
                    wait=False,
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
                failed[engine.name] = error.reason
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
    command = [sys.executable, str(HERE / "oracle.py"), str(arguments.model), str(asked), str(answered)]
    # The machine's own transformers, and where it has none the engines'.
    for path in ("", str(arguments.site)):
        if subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False).returncode == 0:
            break
    else:
        raise SystemExit("the float32 run failed")
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
    natives = [row["errors"] for row in rows if row["engine"] == "native"]
    for row in rows:
        row["problems"] += outside(row["errors"], widest(natives)) if natives else ["no native engine to compare with"]


def main() -> int:
    """Serve, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for folder in ("site", "own", "out", "model"):
        parser.add_argument(f"--{folder}", type=Path, required=True)
    parser.add_argument("--framework", choices=("sglang", "vllm"), default="sglang")
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
    if not rows:
        print("no engine gave anything", flush=True)
        return 1
    judge(rows, arguments)
    result = headed(
        "logits.py",
        f"--framework {arguments.framework}",
        framework="SGLang" if arguments.framework == "sglang" else "vLLM",
        versions={"on": device(), **versions(arguments.own, arguments.site)},
        engines=rows,
        failed=failed,
    )
    write(arguments.out, f"logits-{arguments.framework}", result, table(result))
    print(table(result), flush=True)
    return 1 if failed or any(row["problems"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
