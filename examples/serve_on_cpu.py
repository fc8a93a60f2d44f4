# SPDX-License-Identifier: Apache-2.0
"""Real SGLang on the CPU, a real small model, every fused operator through fl-dispatch: serve_on_cpu.py --model FOLDER

Prints the generated text, which implementation served which layer and why, the calls counted in SGLang's own scheduler process,
and whether the tokens equal those of Hugging Face transformers. Exit status 1 when anything is not as it should be.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fl_dispatch import format_report, wait_for_report

REFERENCE = Path(__file__).parent / "smollm2_greedy_fp32.json"

#: Calls of each operator in one forward of this model: 30 layers, two norms each and a last one.
CALLS_PER_FORWARD = {"rms_norm": 61, "rotary_embedding": 30, "silu_and_mul": 30}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=Path, help="folder of SmolLM2-135M-Instruct in float32")
    model = parser.parse_args().model
    reference = json.loads(REFERENCE.read_text(encoding="utf-8"))

    with tempfile.TemporaryDirectory() as folder:
        # A user's own path wins; read when SGLang loads the plug-in, in this process and in its workers.
        path = Path(os.environ.setdefault("SGLANG_FL_REPORT", f"{folder}/report.json"))
        print("starting SGLang, which takes one to three minutes ...", flush=True)
        with running_engine(model) as engine:
            sampling = {"temperature": 0, "max_new_tokens": 32}
            prompts = [prompt["prompt_ids"] for prompt in reference["prompts"]]
            outputs = [engine.generate(input_ids=prompt, sampling_params=sampling) for prompt in prompts]
            forwards = sum(output["meta_info"]["completion_tokens"] for output in outputs)
            wanted = {op: calls * forwards for op, calls in CALLS_PER_FORWARD.items()}
            # The scheduler writes its report twice a second, and is killed at shutdown.
            written = path.with_name(f"{path.stem}.rank0{path.suffix}")
            try:
                report = wait_for_report(written, wanted)
            except TimeoutError:  # other counts than wanted: shown below
                report = wait_for_report(written)

    for output, prompt in zip(outputs, reference["prompts"], strict=True):
        print(f"\n--- prompt of {len(prompt['prompt_ids'])} tokens ->{output['text']}")
    print(f"\n{format_report(report)}\n")
    problems = check_calls(report, wanted, forwards) + check_tokens(outputs, reference)
    for problem in problems:
        print(f"PROBLEM: {problem}")
    return 1 if problems else 0


@contextlib.contextmanager
def running_engine(model: Path) -> Iterator[Any]:
    """SGLang's offline engine; its workers are processes of their own, as behind the HTTP server."""
    import sglang

    engine = sglang.Engine(
        model_path=str(model),
        device="cpu",
        dtype="float32",
        mem_fraction_static=0.3,
        max_total_tokens=2048,
        max_running_requests=4,
        # With overlap, SGLang starts one forward too many after an end-of-text token; without, tokens are forwards.
        disable_overlap_schedule=True,
        log_level="warning",
    )
    try:
        yield engine
    finally:
        engine.shutdown()


def check_calls(report: dict[str, Any], wanted: dict[str, int], forwards: int) -> list[str]:
    """The counts come from the scheduler process: equal tokens alone would not show that anything was dispatched."""
    seen: dict[str, int] = {}
    for row in report["operators"]:
        seen[row["operator"]] = seen.get(row["operator"], 0) + row["calls"]
    print(f"calls in SGLang's {report['role']} process {report['pid']} (this process is {os.getpid()}):")
    for op, per_forward in CALLS_PER_FORWARD.items():
        print(f"  {op:<18} {seen.get(op, 0):>6} = {per_forward} x {forwards} forwards")
    return [f"{op}: {seen.get(op, 0)} calls, not {count}" for op, count in wanted.items() if seen.get(op, 0) != count]


def check_tokens(outputs: list[dict[str, Any]], reference: dict[str, Any]) -> list[str]:
    """Compared as they are, the end-of-text id included where a text ends before the limit of 32 tokens."""
    problems = []
    equal = ended = 0
    for number, (output, prompt) in enumerate(zip(outputs, reference["prompts"], strict=True), 1):
        if output["output_ids"] == prompt["output_ids"]:
            equal += 1
            ended += prompt["output_ids"][-1] == reference["end_of_text_id"]
        else:
            problems.append(f"prompt {number}: {output['output_ids']} instead of {prompt['output_ids']}")
    total = len(reference["prompts"])
    print(
        f"tokens equal to the Hugging Face reference: {equal} of {total} "
        f"({ended} end with the end-of-text id {reference['end_of_text_id']}, which counts as a token)"
    )
    return problems


if __name__ == "__main__":
    sys.exit(main())
