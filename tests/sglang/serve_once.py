# SPDX-License-Identifier: Apache-2.0
"""Run as a program by the tests: starts SGLang's engine, generates, writes what came out. serve_once.py JOB.json"""

import json
import os
import sys
from pathlib import Path


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    import sglang

    engine = sglang.Engine(
        model_path=os.environ["FL_TEST_MODEL"],
        device="cpu",
        dtype="float32",
        mem_fraction_static=0.3,
        max_total_tokens=2048,
        max_running_requests=4,
        disable_overlap_schedule=True,
        log_level="info",
        **job["engine"],
    )
    try:
        sampling = {"temperature": 0, "max_new_tokens": job["new_tokens"]}
        outputs = [engine.generate(input_ids=prompt, sampling_params=sampling) for prompt in job["prompts"]]
        tokens = [output["output_ids"] for output in outputs]
        if job["reports"]:
            from fl_dispatch import wait_for_report

            # The workers are killed at shutdown: let them write their last counts.
            forwards = sum(map(len, tokens))
            calls = {op: per_forward * forwards for op, per_forward in job["calls_per_forward"].items()}
            for report in job["reports"]:
                wait_for_report(Path(report), calls, timeout=10)
        Path(job["result"]).write_text(json.dumps(tokens), encoding="utf-8")
    finally:
        engine.shutdown()


if __name__ == "__main__":
    main()
