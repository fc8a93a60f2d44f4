# SPDX-License-Identifier: Apache-2.0
"""One vLLM engine; does what it reads from its input, see ``job_loop.py``. Arguments as those of ``engine.py``, but without --tp
and --piecewise: compiled graphs with piecewise CUDA graphs are vLLM's default, which ``--eager`` leaves out.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from engine import VOCABULARY, extra_arguments, model_arguments, parse
from job_loop import answer_jobs, begin


def start(arguments: argparse.Namespace) -> Any:
    """The engine, ready to serve."""
    from vllm import LLM

    path, load_format = model_arguments(arguments.model)
    options: dict[str, Any] = {
        "model": path,
        "load_format": load_format,
        "dtype": "bfloat16",
        "skip_tokenizer_init": True,
        "max_model_len": 8192,
        "max_num_seqs": 64,
        "enforce_eager": arguments.eager,
        "enable_prefix_caching": False,
        # Several engines share the GPU and start at the same time: a fixed size of cache, and little that must be free.
        "gpu_memory_utilization": 0.05,
        "kv_cache_memory_bytes": 40_960 * 131_072,
        "seed": 1,
    }
    if arguments.traces is not None:
        options["profiler_config"] = profiler_options(arguments)
    return LLM(**{**options, **extra_arguments(arguments.extra)})


def profiler_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """vLLM's profiler as SGLang's is asked for; versions without a choice of activities trace the CPU as well."""
    from vllm.config import ProfilerConfig

    options: dict[str, Any] = {
        "profiler": "torch",
        "torch_profiler_dir": str(arguments.traces),
        "torch_profiler_with_stack": False,
        "torch_profiler_dump_cuda_time_total": False,
    }
    if any(field.name == "torch_profiler_activities" for field in dataclasses.fields(ProfilerConfig)):
        options["torch_profiler_activities"] = ["CUDA" if arguments.activity == "GPU" else arguments.activity]
    return options


def main() -> None:
    """Serve jobs until the input ends."""
    answers = begin()
    arguments = parse(__doc__ or "")
    llm = start(arguments)
    from vllm import SamplingParams

    def run(prompts: list[list[int]], new: int, **asked: Any) -> list[Any]:
        sampling = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True, detokenize=False, **asked)
        # All at once: where the first are served before the last arrive there are more steps, now these and then those.
        core = llm.llm_engine.engine_core
        core.call_utility("pause_scheduler", "keep", False)
        llm.enqueue([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)
        core.call_utility("resume_scheduler")
        return llm.wait_for_completion(use_tqdm=False)  # type: ignore[no-any-return]

    def generate(prompts: list[list[int]], new: int) -> list[int]:
        return [len(output.outputs[0].token_ids) for output in run(prompts, new)]

    def score(prompts: list[list[int]], new: int) -> list[dict[str, Any]]:
        found = []
        for prompt, output in zip(prompts, run(prompts, new, logprobs=0, prompt_logprobs=1), strict=True):
            # The first token follows nothing.
            steps = output.prompt_logprobs[1:]
            ids = list(output.outputs[0].token_ids)
            found.append(
                {
                    "input": [step[token].logprob for token, step in zip(prompt[1:], steps, strict=True)],
                    "input_top": [next(token for token, entry in step.items() if entry.rank == 1) for step in steps],
                    "output_ids": ids,
                    "output": [
                        step[token].logprob for token, step in zip(ids, output.outputs[0].logprobs, strict=True)
                    ],
                }
            )
        return found

    @contextlib.contextmanager
    def traced() -> Iterator[None]:
        llm.start_profile()
        yield
        llm.stop_profile()

    answer_jobs(answers, VOCABULARY if arguments.model is None else 40_000, generate, score, traced)


if __name__ == "__main__":  # vLLM spawns its workers
    main()
