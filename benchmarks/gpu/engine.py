# SPDX-License-Identifier: Apache-2.0
"""One SGLang engine; does what it reads from its input, see ``job_loop.py``.

A Llama of 8B shape with random weights, or with ``--model`` a real one. ``--eager`` leaves CUDA graphs out, ``--piecewise`` adds
piecewise ones, ``--tp 2`` spreads the model over two GPUs, ``--set device='"cpu"'`` passes an argument to SGLang and
``--set disable_piecewise_cuda_graph=null`` leaves one out. Jobs that are to be profiled write their traces to ``--traces``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from job_loop import answer_jobs, begin

VOCABULARY = 128256
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": VOCABULARY,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
#: Sizes of piecewise graphs: a prefill is padded to the next. Few, since each costs time at the start.
PIECEWISE_TOKENS = [128, 512, 2048, 4096, 8192]


def parse(description: str) -> argparse.Namespace:
    """The arguments that engines of both frameworks take."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--piecewise", action="store_true")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--model", type=Path, help="a folder with a real model")
    parser.add_argument("--traces", type=Path, help="a folder for traces")
    parser.add_argument("--activity", default="GPU", help="what is traced: GPU or CPU")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=JSON", dest="extra")
    return parser.parse_args()


def model_arguments(model: Path | None) -> tuple[str, str]:
    """Folder and load format: of the given model, or of the 8B shape in a folder of its own."""
    if model is not None:
        return str(model), "auto"
    folder = Path(tempfile.mkdtemp(prefix="llama-8b-"))
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return str(folder), "dummy"


def extra_arguments(pairs: list[str]) -> dict[str, Any]:
    """``NAME=JSON`` as keyword arguments."""
    return {name: json.loads(value) for name, _, value in (pair.partition("=") for pair in pairs)}


def start(arguments: argparse.Namespace) -> Any:
    """The engine, ready to serve."""
    import sglang

    path, load_format = model_arguments(arguments.model)
    options: dict[str, Any] = {
        "model_path": path,
        "load_format": load_format,
        "dtype": "bfloat16",
        "skip_tokenizer_init": True,
        "attention_backend": "triton",
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "disable_piecewise_cuda_graph": not arguments.piecewise,
        "disable_cuda_graph": arguments.eager,
        "cuda_graph_max_bs": 64,
        "tp_size": arguments.tp,
        # SGLang's own all-reduce maps memory of one process into others, and may use NVLink multicast: not every host lets
        # its guests do that. NCCL does without.
        "disable_custom_all_reduce": arguments.tp > 1,
        "disable_radix_cache": True,
        # Several engines share the GPU and start at the same time: what is free then decides nothing, the number of tokens does.
        "mem_fraction_static": 0.95,
        "max_total_tokens": 40_000,
        # An engine may be stopped while others are measured.
        "watchdog_timeout": 3600.0,
        "random_seed": 1,
        "log_level": "info",
    }
    if arguments.piecewise:
        options["piecewise_cuda_graph_tokens"] = PIECEWISE_TOKENS
        options["chunked_prefill_size"] = options["piecewise_cuda_graph_max_tokens"] = PIECEWISE_TOKENS[-1]
    options.update(extra_arguments(arguments.extra))
    return sglang.Engine(**{name: value for name, value in options.items() if value is not None})


def main() -> None:
    """Serve jobs until the input ends."""
    answers = begin()
    arguments = parse(__doc__ or "")
    engine = start(arguments)

    def generate(prompts: list[list[int]], new: int) -> list[int]:
        sampling = {"max_new_tokens": new, "temperature": 0.0, "ignore_eos": True}
        return [len(output["output_ids"]) for output in engine.generate(input_ids=prompts, sampling_params=sampling)]

    def score(prompts: list[list[int]], new: int) -> list[dict[str, Any]]:
        sampling = {"max_new_tokens": new, "temperature": 0.0, "ignore_eos": True}
        asked = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1}
        outputs = engine.generate(input_ids=prompts, sampling_params=sampling, **asked)
        return [
            {
                # The first token follows nothing. Each entry is (log-probability, token, text).
                "input": [entry[0] for entry in output["meta_info"]["input_token_logprobs"][1:]],
                "input_top": [entry[0][1] for entry in output["meta_info"]["input_top_logprobs"][1:]],
                "output_ids": output["output_ids"],
                "output": [entry[0] for entry in output["meta_info"]["output_token_logprobs"]],
            }
            for output in outputs
        ]

    @contextlib.contextmanager
    def traced() -> Iterator[None]:
        activities = [arguments.activity]
        engine.start_profile(
            output_dir=str(arguments.traces), activities=activities, with_stack=False, record_shapes=False
        )
        yield
        engine.stop_profile()

    answer_jobs(answers, VOCABULARY if arguments.model is None else 40_000, generate, score, traced)
    engine.shutdown()


if __name__ == "__main__":
    main()
