# SPDX-License-Identifier: Apache-2.0
"""Real SGLang in a process of its own: how the tests start it, and what they get back."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent
REFERENCE = json.loads((TESTS.parent / "examples" / "smollm2_greedy_fp32.json").read_text(encoding="utf-8"))

#: One forward of the model: 30 layers with two norms each, and the last norm; one rotary layer shared by all.
CALLS_PER_FORWARD = {"rms_norm": 61, "rotary_embedding": 30, "silu_and_mul": 30}
LAYERS = {"RMSNorm": 61, "RotaryEmbedding": 1, "SiluAndMul": 30}

#: As a user starts it; anything longer is a hang.
START_TIMEOUT = 280


@dataclass(frozen=True)
class Run:
    """What one engine did. ``report`` is the first scheduler process's; None when it never wrote one."""

    tokens: list[list[int]] | None
    report: dict[str, Any] | None
    log: str
    status: int
    #: Of every rank that wrote one.
    reports: tuple[dict[str, Any], ...] = ()

    @property
    def equal(self) -> int:
        """How many outputs begin as the Hugging Face reference does."""
        assert self.tokens is not None, self.log[-4000:]
        pairs = zip(self.tokens, REFERENCE["prompts"], strict=False)
        return sum(tokens == prompt["output_ids"][: len(tokens)] for tokens, prompt in pairs)

    @property
    def forwards(self) -> int:
        """Forwards of the model: one a generated token, as overlap scheduling is off."""
        assert self.tokens is not None, self.log[-4000:]
        return sum(map(len, self.tokens))

    def ran(self) -> set[tuple[str, str, str, int, int]]:
        """(operator, implementation, layer class, layers, calls) of every row of the scheduler's report."""
        assert self.report is not None, self.log[-4000:]
        return {
            (row["operator"], row["implementation"], row["layer_class"], row["layers"], row["calls"])
            for row in self.report["operators"]
        }

    def expected(self, implementations: Mapping[str, str]) -> set[tuple[str, str, str, int, int]]:
        """What ``ran`` must be when each operator is served by one implementation throughout."""
        classes = {"rms_norm": "RMSNorm", "rotary_embedding": "RotaryEmbedding", "silu_and_mul": "SiluAndMul"}
        return {
            (op, impl, classes[op], LAYERS[classes[op]], CALLS_PER_FORWARD[op] * self.forwards)
            for op, impl in implementations.items()
        }

    def left(self) -> set[tuple[str, int, str]]:
        """(layer class, layers, reason) of what stays with SGLang."""
        assert self.report is not None, self.log[-4000:]
        return {(row["layer_class"], row["layers"], row["reason"]) for row in self.report["left_to_framework"]}

    def vendors(self) -> list[dict[str, Any]]:
        """The records of the vendors' entry points, by name."""
        assert self.report is not None, self.log[-4000:]
        return sorted(self.report["vendors"], key=lambda record: str(record["name"]))

    def error(self) -> str:
        """The message of the error that stopped the start, from the log; layout-free."""
        return re.sub(r"\s+", " ", self.log)


def serve(
    folder: Path,
    settings: Mapping[str, str] | None = None,
    *,
    plugins: Sequence[Path] = (),
    prompts: int = 2,
    new_tokens: int = 4,
    counted: Sequence[str] = tuple(CALLS_PER_FORWARD),
    engine: Mapping[str, Any] | None = None,
    ranks: Sequence[str] = ("rank0",),
) -> Run:
    """Start SGLang with our plug-in, generate, shut it down.

    Args:
        folder: scratch folder of the test.
        settings: environment variables.
        plugins: folders with installed plug-in distributions, put in front of the import path.
        prompts: how many of the reference prompts.
        new_tokens: at most, a prompt.
        counted: operators whose last counts to wait for; none when nothing is dispatched.
        engine: further arguments of the engine.
        ranks: what the names of the schedulers' reports end in.
    """
    report = folder / "report.json"
    result = folder / "result.json"
    job = {
        "prompts": [prompt["prompt_ids"] for prompt in REFERENCE["prompts"][:prompts]],
        "new_tokens": new_tokens,
        "reports": [str(folder / f"report.{rank}.json") for rank in ranks] if counted else [],
        "result": str(result),
        "calls_per_forward": {op: CALLS_PER_FORWARD[op] for op in counted},
        "engine": dict(engine or {}),
    }
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    script = Path(__file__).parent / "serve_once.py"
    environ = environment({"SGLANG_FL_REPORT": str(report), **(settings or {})}, plugins)
    process = subprocess.run(
        [sys.executable, str(script), str(folder / "job.json")],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=START_TIMEOUT,
        check=False,
    )
    written = [path for rank in ranks if (path := folder / f"report.{rank}.json").exists()]
    reports = tuple(json.loads(path.read_text(encoding="utf-8")) for path in written)
    return Run(
        tokens=json.loads(result.read_text(encoding="utf-8")) if result.exists() else None,
        report=reports[0] if reports else None,
        log=process.stdout,
        status=process.returncode,
        reports=reports,
    )


def environment(settings: Mapping[str, str], plugins: Sequence[Path] = ()) -> dict[str, str]:
    """This process's variables with the settings, and the plug-ins importable (and so discoverable)."""
    path = [str(folder) for folder in plugins] + [os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), **settings}


def distribution(folder: Path, name: str, code: str, *entry_points: str) -> Path:
    """A folder where a distribution of one module is installed; ``entry_points`` are the lines of its entry_points.txt."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("\n".join(entry_points), encoding="utf-8")
    (folder / f"{name}.py").write_text(code, encoding="utf-8")
    return folder


def load_in_forks(cases: Mapping[str, Mapping[str, Any]], folder: Path) -> dict[str, dict[str, Any]]:
    """SGLang's real ``load_plugins`` in each case, as told in loader_in_forks.py.

    Args:
        cases: by name ``variables``; ``before`` and ``after``, folders with plug-ins that come before and after ours; and
            ``worker``, whether a scheduler is built.
        folder: scratch folder of the test.
    """
    script = Path(__file__).parent / "loader_in_forks.py"
    (folder / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), str(folder / "cases.json")],
        env=environment({}),
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answers: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return answers
