# SPDX-License-Identifier: Apache-2.0
"""SGLang end to end, without and with the dispatcher, all engines alive at once and taking turns.

    python benchmarks/gpu/serve.py --site DIR --own DIR --out DIR [--rounds 8] [--engines NAME,...]

``site`` holds SGLang and the kernels, ``own`` this repository's packages: engines without the dispatcher do not see them.
Writes ``serve.json`` and ``serve.md`` after every group of rounds, and each engine's log.
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
from pathlib import Path
from typing import Any, TextIO

HERE = Path(__file__).resolve().parent

#: Name to (this repository's packages are there, no CUDA graphs, variables). Those of a group are compared with its first.
#: One whose configuration file is not in the output folder (the steps tune and tune-eager write them there) is left out.
GROUPS: dict[str, dict[str, tuple[bool, bool, dict[str, str]]]] = {
    "CUDA graphs": {
        "native": (False, False, {}),
        "dispatched": (True, False, {"SGLANG_FL_PREFER": "vendor"}),
        "tuned": (True, False, {"SGLANG_FL_CONFIG": "{out}/fl-tuned.yaml"}),
    },
    "eager": {
        "native, eager": (False, True, {}),
        "dispatched, eager": (True, True, {"SGLANG_FL_PREFER": "vendor"}),
        "tuned, eager": (True, True, {"SGLANG_FL_CONFIG": "{out}/fl-tuned-eager.yaml"}),
    },
}
#: Name to a job for engine.py and which of its numbers times requests makes the rate.
JOBS: dict[str, tuple[dict[str, int], str]] = {
    "decode, 64 requests": ({"requests": 64, "prompt": 128, "new": 128}, "new"),
    "decode, 1 request": ({"requests": 1, "prompt": 128, "new": 128}, "new"),
    "prefill, 16 x 4096": ({"requests": 16, "prompt": 4096, "new": 1}, "prompt"),
}


class Engine:
    """One engine.py in a process of its own, started and ready."""

    def __init__(
        self, name: str, own: bool, eager: bool, variables: dict[str, str], arguments: Any, *options: str
    ) -> None:
        self.name = name
        folders = [str(arguments.own)] if own else []
        environ = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join([*folders, str(arguments.site)])}
        self.log = arguments.out / f"engine-{name.replace(', ', '-')}.log"
        command = [sys.executable, str(HERE / "engine.py"), *(["--eager"] if eager else []), *options]
        started = time.monotonic()
        with self.log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self._answer("READY")
        print(f"{name}: up after {time.monotonic() - started:.0f} s", flush=True)

    def _answer(self, word: str) -> str:
        output: TextIO = self._process.stdout  # type: ignore[assignment]  # a pipe was asked for
        for line in output:
            if line.startswith(word):
                return line.removeprefix(word).strip()
            if line.startswith("WRONG"):
                break
        raise RuntimeError(f"{self.name} gave no {word}; see {self.log}")

    def seconds(self, job: dict[str, int]) -> float:
        """How long the engine took for one job."""
        pipe: TextIO = self._process.stdin  # type: ignore[assignment]  # a pipe was asked for
        pipe.write(json.dumps(job) + "\n")
        pipe.flush()
        return float(self._answer("SECONDS"))

    def stop(self) -> None:
        """End it; a process that hangs at its end is no loss."""
        self._process.stdin.close()  # type: ignore[union-attr]
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def choices(self) -> list[str]:
        """The lines of its log that say which implementations its layers run."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return [
            line
            for line in text.splitlines()
            if any(word in line for word in ("vendor.cuda", "flagos", "(framework's own)"))
        ]


def measure(engines: list[Engine], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Tokens a second by job and engine, in every round; the order of the engines alternates."""
    rates: dict[str, dict[str, list[float]]] = {job: {engine.name: [] for engine in engines} for job in JOBS}
    for number in range(-1, rounds):
        for name, (job, counted) in JOBS.items():
            for engine in engines if number % 2 else engines[::-1]:
                rate = job["requests"] * job[counted] / engine.seconds(job)
                if number >= 0:  # the first one warms up
                    rates[name][engine.name].append(rate)
    return rates


def interval(ratios: list[float]) -> tuple[float, float]:
    """Mean and half of its 95 % interval (normal approximation with Student's factor for small samples)."""
    if len(ratios) < 3:
        return statistics.mean(ratios), float("nan")
    factor = {3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}.get(len(ratios), 2.2)
    return statistics.mean(ratios), factor * statistics.stdev(ratios) / len(ratios) ** 0.5


def table(result: dict[str, Any]) -> str:
    """The rates as Markdown."""
    lines = [f"# SGLang end to end, {result['date']}", "", f"`{result['command']}`", "", result["setting"], ""]
    lines += [f"| engine | {' | '.join(JOBS)} |", "|---|" + "---:|" * len(JOBS)]
    for rates in result["groups"].values():
        names = list(next(iter(rates.values())))
        for name in names:
            cells = []
            for job in JOBS:
                ours, base = rates[job][name], rates[job][names[0]]
                cell = f"{statistics.median(ours):,.0f}"
                if name != names[0]:
                    mean, half = interval([a / b for a, b in zip(ours, base, strict=True)])
                    cell += f" ({mean:.3f} ± {half:.3f})"
                cells.append(cell)
            lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += [
        "",
        "Tokens a second, medians; in brackets the mean ratio to native of the same round, 95 % interval.",
        "",
    ]
    for name, choices in result["choices"].items():
        lines += [f"Layers of {name}:", "", "```", *choices, "```", ""]
    return "\n".join(lines)


def main() -> None:
    """Start, measure and write, group after group."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for folder in ("site", "own", "out"):
        parser.add_argument(f"--{folder}", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--groups", default=";".join(GROUPS), help="separated by semicolons")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": f"python3 benchmarks/gpu/serve.py --rounds {arguments.rounds}",
        "setting": "SGLang 0.5.11, Llama of 8B shape with random weights in bfloat16, triton attention, one H200.",
        "groups": {},
        "choices": {},
    }
    for group in arguments.groups.split(";"):
        engines: list[Engine] = []
        try:
            for name, (own, eager, variables) in GROUPS[group].items():
                here = {key: value.format(out=arguments.out.resolve()) for key, value in variables.items()}
                config = here.get("SGLANG_FL_CONFIG")
                if config is not None and not Path(config).exists():
                    print(f"{name}: left out, there is no {config}", flush=True)
                    continue
                engines.append(Engine(name, own, eager, here, arguments))
            result["groups"][group] = measure(engines, arguments.rounds)
            result["choices"].update({engine.name: found for engine in engines if (found := engine.choices())})
        finally:
            for engine in engines:
                engine.stop()
        (arguments.out / "serve.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        (arguments.out / "serve.md").write_text(table(result), encoding="utf-8")
    print(table(result))


if __name__ == "__main__":
    main()
