# SPDX-License-Identifier: Apache-2.0
"""Run vLLM's offline engine for one job file; see ``vllm_engine.generate``."""

import json
import sys
from pathlib import Path


def main() -> None:
    from vllm import LLM, SamplingParams

    from fl_dispatch import wait_for_report

    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    llm = LLM(**job["engine"])
    sampling = SamplingParams(temperature=0, max_tokens=job["new_tokens"], logprobs=0)
    outputs = [
        llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)[0].outputs[0]
        for prompt in job["prompts"]
    ]
    tokens = [list(output.token_ids) for output in outputs]
    logprobs = [
        [step[token].logprob for token, step in zip(output.token_ids, output.logprobs, strict=True)]
        for output in outputs
    ]
    forwards = sum(map(len, tokens))
    # The worker writes its report twice a second, and is killed at the end.
    counts = {op: calls * forwards for op, calls in job["calls_per_forward"].items()}
    report = wait_for_report(Path(job["report"]), counts)
    answer = {"tokens": tokens, "logprobs": logprobs, "report": report}
    Path(job["result"]).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":  # vLLM spawns its workers
    main()
