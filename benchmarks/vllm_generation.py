# SPDX-License-Identifier: Apache-2.0
"""Generation by vLLM on a CPU with vllm-fl-adapter against vLLM without it: vllm_generation.py --model FOLDER

Two engines are up at the same time, each in a process of its own, and generate in turns: what else the machine does meets
both alike. The adapter serves every layer with the PyTorch reference; vLLM runs what it would run without us. Prints the
time of one decoding step of each, and the ratio of the two throughputs: the median over the rounds of (without / with).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

#: Engine and worker in one process: an engine that is not asked for anything then takes no processor time.
COMMON = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1"}
#: vLLM loads no plug-in at all where the list of wanted ones is empty.
WITHOUT = {"VLLM_PLUGINS": ""}
WITH = {"VLLM_PLUGINS": "vllm_fl_adapter", "VLLM_FL_PREFER": "reference"}


def main() -> None:
    """Measure both modes and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=Path, help="folder of a model, loaded in float32")
    parser.add_argument("--rounds", type=int, default=12, help="generations of each engine (default %(default)s)")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens a generation (default %(default)s)")
    parser.add_argument("--mode", choices=["eager", "compiled"], help="only one of the two")
    parser.add_argument("--engine", help=argparse.SUPPRESS)  # this process is one of the engines
    options = parser.parse_args()
    if options.engine:
        engine(options.model, options.tokens, eager=options.engine == "eager")
        return
    print("| mode | vLLM, ms a step | with the adapter, ms a step | throughput with / without | range |")
    print("|---|---|---|---|---|")
    for mode in [options.mode] if options.mode else ["eager", "compiled"]:
        print(measure(mode, options), flush=True)


def measure(mode: str, options: argparse.Namespace) -> str:
    """One line of the table."""
    command = [
        sys.executable,
        __file__,
        "--model",
        str(options.model),
        "--tokens",
        str(options.tokens),
        "--engine",
        mode,
    ]
    engines = {}
    for name, variables in (("without", WITHOUT), ("with", WITH)):
        environ = {**os.environ, **COMMON, **variables}
        engines[name] = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        ask(engines[name])  # is up and warm; the other one starts only now
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    tokens: dict[str, Any] = {}
    for number in range(options.rounds):
        # Who goes first changes: a slow drift of the machine favours nobody.
        for name in sorted(engines, reverse=bool(number % 2)):
            answer = ask(engines[name])
            seconds[name].append(answer["seconds"])
            tokens[name] = answer["tokens"]
    for process in engines.values():
        process.kill()
        process.wait()
    assert tokens["with"] == tokens["without"], "the two engines do not generate the same"
    ratios = sorted(plain / ours for plain, ours in zip(seconds["without"], seconds["with"], strict=True))
    step = {name: 1e3 * statistics.median(values) / options.tokens for name, values in seconds.items()}
    return (
        f"| {mode} | {step['without']:.2f} | {step['with']:.2f} | {statistics.median(ratios):.3f} "
        f"| {ratios[0]:.3f} to {ratios[-1]:.3f} |"
    )


def ask(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Have an engine generate once. Everything else that vLLM prints is passed over."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    for line in process.stdout:
        if line.startswith("ANSWER "):
            answer: dict[str, Any] = json.loads(line.removeprefix("ANSWER "))
            return answer
    raise SystemExit(f"an engine ended with status {process.wait()}; run it by hand: {process.args}")


def engine(model: Path, tokens: int, *, eager: bool) -> None:
    """One engine: generates once for each line it reads."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=str(model),
        dtype="float32",
        max_model_len=512,
        max_num_seqs=8,
        kv_cache_memory_bytes=256 << 20,
        enforce_eager=eager,
        enable_prefix_caching=False,
    )
    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    prompt = [{"prompt_token_ids": list(range(500, 516))}]
    llm.generate(prompt, sampling, use_tqdm=False)
    for _ in sys.stdin:
        started = time.perf_counter()
        output = llm.generate(prompt, sampling, use_tqdm=False)[0].outputs[0]
        answer = {"seconds": time.perf_counter() - started, "tokens": list(output.token_ids)}
        print(f"\nANSWER {json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    main()
