# SPDX-License-Identifier: Apache-2.0
"""The demo: a real engine serves the small model through the plug-in."""

from __future__ import annotations

from collections.abc import Sequence

from fltool.environments import ensure, named
from fltool.model import ensure_model
from fltool.paths import ROOT
from fltool.process import run_shown

ENVIRONMENT = "sglang-0.5.23"
SCRIPT = ROOT / "examples" / "serve_on_cpu.py"


def run_demo(arguments: Sequence[str] = ()) -> int:
    """Make the environment and the model if need be, and run the demo with the model's folder.

    Returns:
        the demo's exit status.
    """
    env = named(ENVIRONMENT)
    ensure(env)
    model = ensure_model()
    command = [str(env.python), str(SCRIPT), "--model", str(model), *arguments]
    return run_shown(
        command, environment=env.variables({"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}, keep_settings=True)
    )
