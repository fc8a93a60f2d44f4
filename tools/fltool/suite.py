# SPDX-License-Identifier: Apache-2.0
"""Which checks and tests run in which environment, and running them all."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fltool.engine_versions import engine_version
from fltool.environments import ensure, named
from fltool.junit import Counts, pytest_counts
from fltool.model import ensure_model
from fltool.paths import ENVS, MODEL, PACKAGES, REPORTS, ROOT
from fltool.process import ToolError, run_shown

# What tests of one environment leave for those of another; made anew in each run.
RECORDS = ENVS / "records"
LINT_TIMEOUT = 600.0
TEST_TIMEOUT = 2700.0

# Commands of the environment dev. Each is one check of the step `lint`.
LINTERS = (("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",), ("lint-imports", "--no-logo"))


@dataclass(frozen=True)
class Step:
    """One run of pytest in one environment.

    Args:
        environment: its name.
        paths: of the repository; those that do not exist are left out, and the step with them if none does.
        select: a pytest -k expression for the paths in ``selected_paths``, which are then a run of their own.
        needs_model: the tests serve the small model.
        needs_source: a folder of the repository without which the step makes no sense.
        title: what the step is called, where that is not its version or environment.
        version: of an engine, laid over the environment.
        workers: how many tests run at a time; starting an engine keeps one core busy.
    """

    environment: str
    paths: tuple[str, ...]
    selected_paths: tuple[str, ...] = ()
    select: str = ""
    needs_model: bool = True
    needs_source: str = "packages"
    title: str = ""
    version: str = ""
    workers: int = 2

    @property
    def name(self) -> str:
        """What the step is called."""
        return self.title or self.version or self.environment

    def runs(self) -> list[list[str]]:
        """The pytest arguments of each run; empty if nothing of it exists."""
        if not _existing([self.needs_source]):
            return []
        plain = _existing(self.paths)
        selected = _existing(self.selected_paths)
        return [*([plain] if plain else []), *([[*selected, "-k", self.select]] if selected else [])]


_EVERY_SGLANG = ("tests/sglang/test_bridges.py", "tests/sglang/test_graphs.py", "tests/sglang/test_serving.py")

STEPS = (
    Step("dev", ("tests/unit", "tests/property", "tests/tools", "tests/gpu"), needs_model=False),
    Step("sglang-0.5.23", ("tests/unit/ops", "tests/sglang")),
    Step("sglang-0.5.17", (*_EVERY_SGLANG, "tests/sglang/test_platform.py")),
    Step("sglang-0.5.17", _EVERY_SGLANG, version="sglang-0.5.11"),
    Step(
        "vllm-0.32",
        ("tests/vllm",),
        selected_paths=("tests/unit/ops",),
        select="vllm",
        needs_source="packages/vllm-fl-adapter/src",
    ),
)
# Last, as it compares what the tests of both engines left behind.
BOTH = Step("dev", ("tests/frameworks",), title="both engines", needs_model=False, workers=1)
STEP_NAMES = ("lint", *(step.name for step in STEPS))


def run_suite(only: Sequence[str] = (), extra: Sequence[str] = ()) -> bool:
    """Build what is needed, run every step to its end, and print one line a step and the sum.

    Args:
        only: names of steps; all of them when empty.
        extra: further arguments for every pytest run (``-k name``), with which a step may select no test.

    Returns:
        True if nothing failed.
    """
    started = time.monotonic()
    unknown = [name for name in only if name not in STEP_NAMES]
    if unknown:
        raise ToolError(f"unknown step {unknown[0]!r}; there are: {', '.join(STEP_NAMES)}")
    steps = [step for step in STEPS if (not only or step.name in only) and _applies(step)]
    lint = not only or "lint" in only
    environments = dict.fromkeys([*(["dev"] if lint else []), *(step.environment for step in steps)])
    for name in environments:
        ensure(named(name))
    if any(step.needs_model for step in steps):
        ensure_model()
    summary: list[tuple[str, Counts, float]] = []
    if lint:
        summary.append(_lint())
    shutil.rmtree(RECORDS, ignore_errors=True)
    RECORDS.mkdir(parents=True)
    summary += [_run(step, extra) for step in steps]
    if not only and not extra:
        summary.append(_run(BOTH, extra))
    return _report(summary, time.monotonic() - started)


def _applies(step: Step) -> bool:
    if step.runs():
        return True
    print(f"{step.name}: left out, there is no {' or '.join(step.paths)} to test yet", flush=True)
    return False


def source_folders() -> list[Path]:
    """Where the code of each package is. The import contracts are also about those that dev does not install."""
    return sorted(PACKAGES.glob("*/src"))


def _lint() -> tuple[str, Counts, float]:
    env = named("dev")
    started = time.monotonic()
    counts = Counts()
    for linter in LINTERS:
        print(f"\n== lint: {' '.join(linter)}", flush=True)
        command = [str(env.folder / "bin" / linter[0]), *linter[1:]]
        status = run_shown(
            command,
            environment=env.variables({"PYTHONPATH": ":".join(map(str, source_folders()))}),
            timeout=LINT_TIMEOUT,
        )
        counts += Counts(failed=1) if status else Counts(passed=1)
    return "lint", counts, time.monotonic() - started


def pytest_variables() -> dict[str, str]:
    """What every test run has in its environment."""
    return {
        # More threads than cores make the engines' decoding slower by an order of magnitude.
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # Tests serve the local model; a look-up on the hub would only make them hang without a network.
        "HF_HUB_OFFLINE": "1",
        "FL_TEST_MODEL": str(MODEL),
        "FL_TEST_WHEELS": str(RECORDS),
        "FL_TEST_RECORDS": str(RECORDS),
    }


def _run(step: Step, extra: Sequence[str]) -> tuple[str, Counts, float]:
    env = named(step.environment)
    started = time.monotonic()
    counts = Counts()
    folders = engine_version(step.version).folders() if step.version else []
    variables = {**pytest_variables(), **({"PYTHONPATH": ":".join(map(str, folders))} if folders else {})}
    REPORTS.mkdir(parents=True, exist_ok=True)
    for number, arguments in enumerate(step.runs()):
        report = REPORTS / f"{step.name}-{number}.xml"
        report.unlink(missing_ok=True)
        print(f"\n== {step.name}: pytest {' '.join([*arguments, *extra])}", flush=True)
        # By file, as the tests of a file share engines. (loadgroup of xdist 3.8 groups nothing under pytest 9.2.)
        parallel = [f"--numprocesses={step.workers}", "--dist=loadfile"] if step.workers > 1 else []
        command = [str(env.python), "-m", "pytest", f"--junitxml={report}", *parallel, *arguments, *extra]
        status = run_shown(command, environment=env.variables(variables), timeout=TEST_TIMEOUT)
        counts += pytest_counts(status, report, may_be_empty=bool(extra))
    return step.name, counts, time.monotonic() - started


def _report(summary: Sequence[tuple[str, Counts, float]], seconds: float) -> bool:
    print()
    total = Counts()
    for name, counts, elapsed in summary:
        print(f"{'FAILED' if counts.failed else 'ok':6} {name:14} {elapsed:6.0f} s  {counts}")
        total += counts
    print(f"{seconds:.0f} s in all")
    print(total, flush=True)
    return total.failed == 0


def _existing(paths: Sequence[str]) -> list[str]:
    return [path for path in paths if (ROOT / path).exists()]
