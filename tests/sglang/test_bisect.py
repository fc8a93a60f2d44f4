# SPDX-License-Identifier: Apache-2.0
"""``fl-dispatch bisect`` with real SGLang: a vendor's wrong norm is found by the tokens alone."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from engine import REFERENCE, START_TIMEOUT, environment

pytestmark = pytest.mark.sglang

_STARTS = 4
_NEW_TOKENS = 12


@pytest.mark.timeout(_STARTS * START_TIMEOUT)
def test_the_operator_whose_numbers_are_wrong_is_blamed(tmp_path: Path, plugin: Callable[[str], Path]) -> None:
    prompt = REFERENCE["prompts"][0]
    result, wanted, job = (tmp_path / name for name in ("result.json", "wanted.json", "job.json"))
    wanted.write_text(json.dumps([prompt["output_ids"][:_NEW_TOKENS]]), encoding="utf-8")
    task = {"prompts": [prompt["prompt_ids"]], "new_tokens": _NEW_TOKENS, "reports": [], "engine": {}}
    job.write_text(json.dumps({**task, "result": str(result)}), encoding="utf-8")
    generate = shlex.join([sys.executable, str(Path(__file__).parent / "serve_once.py"), str(job)])
    # 125: without tokens there is nothing to judge.
    judge = f"rm -f {result}; {generate} || exit 125; cmp {result} {wanted}"
    bisect = [
        sys.executable,
        "-m",
        "fl_dispatch",
        "bisect",
        "--prefix",
        "SGLANG_FL_",
        "--json",
        "--logs",
        str(tmp_path),
    ]
    done = subprocess.run(
        [*bisect, "--ops", "rms_norm,silu_and_mul", "--", "sh", "-c", judge],
        env=environment({"SGLANG_FL_PREFER": "vendor:wrong_numbers"}, [plugin("wrong-numbers")]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(done.stdout)
    assert found["guilty"] == ["rms_norm"]
    assert found["operators"]["rms_norm"]["chosen"] == ["vendor.wrong_numbers"]
    assert found["avoid_with"] == {"SGLANG_FL_PER_OP": "rms_norm=reference"}
    assert [(sorted(run["orders"]), run["verdict"]) for run in found["runs"]] == [
        ([], "bad"),
        (["rms_norm", "silu_and_mul"], "good"),
        (["rms_norm"], "good"),
        (["rms_norm"], "good"),
    ]
