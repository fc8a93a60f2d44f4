# SPDX-License-Identifier: Apache-2.0
"""Converts a Llama GGUF file to a float32 Hugging Face folder: convert_gguf.py MODEL.gguf FOLDER.

Run by ``fl.py model`` with the Python of an SGLang environment (torch, transformers, gguf, accelerate).
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

# What describes the architecture. The loaded configuration also has marks of the quantized origin, and with those
# transformers neither dequantizes a model nor saves it as a plain one; so the rest is left behind.
ARCHITECTURE = (
    "attention_bias",
    "bos_token_id",
    "eos_token_id",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "initializer_range",
    "intermediate_size",
    "max_position_embeddings",
    "mlp_bias",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "pad_token_id",
    "rms_norm_eps",
    "rope_parameters",
    "tie_word_embeddings",
    "vocab_size",
)


def convert(gguf: Path, folder: Path) -> None:
    """Load the dequantized weights into a plain Llama model and save it with its tokenizer."""
    source, file = str(gguf.parent), gguf.name
    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=file, dtype=torch.float32)
    fields = loaded.config.to_dict()
    config = LlamaConfig(**{name: fields[name] for name in ARCHITECTURE if name in fields})
    config.architectures = ["LlamaForCausalLM"]
    model = LlamaForCausalLM(config).to(torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=file).save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
