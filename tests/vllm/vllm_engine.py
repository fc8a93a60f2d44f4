# SPDX-License-Identifier: Apache-2.0
"""Real vLLM in a process of its own: how the tests start it, and what they get back."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ports import free_port

from fl_dispatch import wait_for_report

TESTS = Path(__file__).parent.parent
REFERENCE = json.loads((TESTS.parent / "examples" / "smollm2_greedy_fp32.json").read_text(encoding="utf-8"))
PROMPTS = [prompt["prompt_ids"] for prompt in REFERENCE["prompts"]]
WANTED = [prompt["output_ids"] for prompt in REFERENCE["prompts"]]

#: One forward of the model: 30 layers with two norms each, and the last norm; one rotary layer shared by all.
CALLS_PER_FORWARD = {"rms_norm": 61, "rotary_embedding": 30, "silu_and_mul": 30}
CLASSES = {"rms_norm": "RMSNorm", "rotary_embedding": "RotaryEmbedding", "silu_and_mul": "SiluAndMul"}
LAYERS = {"rms_norm": 61, "rotary_embedding": 1, "silu_and_mul": 30}

#: Compiling the model takes minutes on a small machine; anything longer is a hang.
START_TIMEOUT = 600

#: Selects the platform of this distribution.
OUR_PLATFORM = {"VLLM_PLUGINS": "vllm_fl_adapter,vllm_fl_cpu"}

#: Engine and worker in the process of the caller: half the time to start, for tests of anything but processes.
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}

#: Tokens as the reference has them; sizes that fit a small machine.
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 512,
    "max_num_seqs": 8,
    "kv_cache_memory_bytes": 256 << 20,
}


@dataclass(frozen=True)
class Run:
    """What one engine did; None what it did not come to. ``report`` is the worker process's, while the engine was up."""

    tokens: list[list[int]] | None
    logprobs: list[list[float]] | None
    report: dict[str, Any] | None
    log: str
    status: int

    def ran(self) -> set[tuple[str, str, str, int, int, int]]:
        """(operator, implementation, layer class, layers, calls, sites in graphs) of every row of the worker's report."""
        assert self.report is not None, self.log[-4000:]
        return ran(self.report)

    @property
    def forwards(self) -> int:
        """Forwards of the model: one a generated token, as prompts come one after the other."""
        assert self.tokens is not None, self.log[-4000:]
        return sum(map(len, self.tokens))

    def error(self) -> str:
        """The log, layout-free."""
        return re.sub(r"\s+", " ", self.log)


def ran(report: Mapping[str, Any]) -> set[tuple[str, str, str, int, int, int]]:
    """See ``Run.ran``."""
    return {
        (row["operator"], row["implementation"], row["layer_class"], row["layers"], row["calls"], row["graph_sites"])
        for row in report["operators"]
    }


def eager_rows(implementations: Mapping[str, str], forwards: int) -> set[tuple[str, str, str, int, int, int]]:
    """What ``ran`` must be when each operator is served by one implementation in every call of an eager engine."""
    return {
        (op, impl, CLASSES[op], LAYERS[op], CALLS_PER_FORWARD[op] * forwards, 0) for op, impl in implementations.items()
    }


def compiled_rows(implementations: Mapping[str, str], layers: int = 30) -> set[tuple[str, str, str, int, int, int]]:
    """The same for a compiled engine: every site is once in the one graph, and no call runs outside of it."""
    sites = {"rms_norm": 2 * layers + 1, "rotary_embedding": layers, "silu_and_mul": layers}
    instances = {**sites, "rotary_embedding": 1}
    return {(op, impl, CLASSES[op], instances[op], 0, sites[op]) for op, impl in implementations.items()}


def environment(settings: Mapping[str, str], plugins: Sequence[Path] = ()) -> dict[str, str]:
    """This process's variables with the settings, and the plug-ins importable (and so discoverable)."""
    path = [str(folder) for folder in plugins] + [os.environ.get("PYTHONPATH", "")]
    quiet = {"VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return {**os.environ, **quiet, "PYTHONPATH": os.pathsep.join(filter(None, path)), **settings}


def generate(
    folder: Path,
    settings: Mapping[str, str] | None = None,
    *,
    plugins: Sequence[Path] = (),
    model: Path | None = None,
    prompts: int = 2,
    new_tokens: int = 32,
    counted: Mapping[str, int] = MappingProxyType({}),
    **engine: Any,
) -> Run:
    """Start ``vllm.LLM`` with our plug-in, generate, end the process.

    Args:
        folder: scratch folder of the test.
        settings: environment variables.
        plugins: folders with installed plug-in distributions, put in front of the import path.
        model: the folder of the model; that of the tests when omitted.
        prompts: how many of the reference prompts.
        new_tokens: at most, a prompt.
        counted: calls of an operator in one forward; the report is waited for until it has them all.
        engine: arguments of ``LLM``.
    """
    folder.mkdir(exist_ok=True)
    job = {
        "engine": {"model": str(model or os.environ["FL_TEST_MODEL"]), **ENGINE, **engine},
        "prompts": PROMPTS[:prompts],
        "new_tokens": new_tokens,
        "result": str(folder / "result.json"),
        "report": str(folder / "report.rank0.json"),
        "calls_per_forward": dict(counted),
    }
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    process = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "generate_once.py"), str(folder / "job.json")],
        env=environment({"VLLM_FL_REPORT": str(folder / "report.json"), **(settings or {})}, plugins),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=START_TIMEOUT,
        check=False,
    )
    result = folder / "result.json"
    answer = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {}
    return Run(answer.get("tokens"), answer.get("logprobs"), answer.get("report"), process.stdout, process.returncode)


def serve(
    folder: Path,
    settings: Mapping[str, str],
    *,
    plugins: Sequence[Path] = (),
    model: Path | None = None,
    eager: bool = False,
    counted: Mapping[str, int] = MappingProxyType(CALLS_PER_FORWARD),
    prompts: int = 2,
) -> Run:
    """``vllm serve`` and an OpenAI client; the report is what the worker wrote while the server was up."""
    folder.mkdir(exist_ok=True)
    name = str(model or os.environ["FL_TEST_MODEL"])
    port = free_port()
    command = [
        str(Path(sys.executable).parent / "vllm"), "serve", name, "--host", "127.0.0.1", "--port",
        str(port), *(part for key, value in ENGINE.items() for part in (f"--{key.replace('_', '-')}", str(value))),
        *(["--enforce-eager"] if eager else []),
    ]  # fmt: skip
    environ = environment({"VLLM_FL_REPORT": str(folder / "report.json"), **settings}, plugins)
    log = folder / "log"
    with log.open("w") as stream:
        process = subprocess.Popen(command, env=environ, stdout=stream, stderr=stream)
    tokens: list[list[int]] = []
    report = None
    try:
        address = _when_healthy(f"http://127.0.0.1:{port}", process, log)
        tokens = [_complete(address, name, prompt) for prompt in PROMPTS[:prompts]]
        forwards = sum(map(len, tokens))
        calls = {op: count * forwards for op, count in counted.items()} if eager else None
        report = wait_for_report(folder / "report.rank0.json", calls)
    finally:
        process.terminate()
        process.wait(60)
    return Run(tokens, None, report, log.read_text(errors="replace"), process.returncode)


def _when_healthy(address: str, process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text(errors="replace")[-4000:]
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5):
                return address
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise TimeoutError(log.read_text(errors="replace")[-4000:])


def _complete(address: str, model: str, prompt: list[int]) -> list[int]:
    """The tokens of one completion, by OpenAI's protocol; token ids are vLLM's addition to it."""
    body = {
        "model": model,
        "prompt": prompt,
        "temperature": 0,
        "max_tokens": 32,
        "return_token_ids": True,
    }
    request = urllib.request.Request(
        f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        tokens: list[int] = json.load(answer)["choices"][0]["token_ids"]
    return tokens
