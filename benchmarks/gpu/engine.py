# SPDX-License-Identifier: Apache-2.0
"""One SGLang engine with an 8B-shaped Llama of random weights; does what it reads from its input, a JSON line a job.

    {"requests": 64, "prompt": 128, "new": 128}

``--eager`` leaves CUDA graphs out, ``--tp 2`` spreads the model over two GPUs.

The answer is a line ``SECONDS 1.234`` on its output: the time of one ``generate`` call on fresh random prompts.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

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


def start(eager: bool, ranks: int) -> Any:
    """The engine, ready to serve."""
    import sglang

    folder = Path(tempfile.mkdtemp(prefix="llama-8b-"))
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return sglang.Engine(
        model_path=str(folder),
        load_format="dummy",
        dtype="bfloat16",
        skip_tokenizer_init=True,
        attention_backend="triton",
        sampling_backend="pytorch",
        grammar_backend="none",
        disable_piecewise_cuda_graph=True,
        disable_cuda_graph=eager,
        cuda_graph_max_bs=64,
        tp_size=ranks,
        # SGLang's own all-reduce maps memory of one process into others, and may use NVLink multicast: not every host lets
        # its guests do that. NCCL does without.
        disable_custom_all_reduce=ranks > 1,
        disable_radix_cache=True,
        # Several engines share the GPU; none takes more than it needs for the largest job.
        mem_fraction_static=0.5,
        max_total_tokens=80_000,
        random_seed=1,
        log_level="info",
    )


def main() -> None:
    """Serve jobs until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--tp", type=int, default=1)
    arguments = parser.parse_args()
    engine = start(arguments.eager, arguments.tp)
    numbers = random.Random(7)
    print("READY", flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        prompts = [[numbers.randrange(1000, VOCABULARY) for _ in range(job["prompt"])] for _ in range(job["requests"])]
        sampling = {"max_new_tokens": job["new"], "temperature": 0.0, "ignore_eos": True}
        started = time.perf_counter()
        outputs = engine.generate(input_ids=prompts, sampling_params=sampling)
        seconds = time.perf_counter() - started
        tokens = {len(output["output_ids"]) for output in outputs}
        print(f"SECONDS {seconds:.5f}" if tokens == {job["new"]} else f"WRONG {tokens}", flush=True)
    engine.shutdown()


if __name__ == "__main__":
    main()
