# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of given token sequences by transformers in float32: oracle.py MODEL SEQUENCES.json RESULT.json

The weights are those of the model's file, widened; TF32 is off. For each sequence: ``logprobs`` of its tokens from the second on
and ``top``, the most probable token at each of those positions.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> None:
    """Score all sequences, one by one."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32, attn_implementation="eager").to(
        device
    )
    results = []
    with torch.inference_mode():
        for sequence in json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")):
            ids = torch.tensor([sequence], device=device)
            logits = model(ids).logits[0, :-1]
            assert logits.dtype == torch.float32
            chosen = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0]
            results.append({"logprobs": chosen.tolist(), "top": logits.argmax(-1).tolist()})
    Path(sys.argv[3]).write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main()
