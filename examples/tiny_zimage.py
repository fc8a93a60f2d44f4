# SPDX-License-Identifier: Apache-2.0
"""A Z-Image pipeline of 4 MB with random weights: text encoder, transformer, autoencoder, tokenizer and scheduler."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

HEAD_SIZE, HEADS, TEXT = 32, 2, 64
#: One image of ``SAMPLING``: the text encoder for both prompts (3 blocks with 4 norms, an activation and a rotary embedding
#: each, and a last norm), then 2 steps of the transformer for both, of 4 blocks with an activation each.
CALLS = {"rms_norm": 2 * (3 * 4 + 1), "rotary_embedding": 2 * 3, "silu_and_mul": 2 * 3 + 2 * 2 * 4}
LAYERS = {"rms_norm": 3 * 4 + 1, "rotary_embedding": 1, "silu_and_mul": 3 + 4}
SAMPLING = {
    "prompt": "a small cat",
    "negative_prompt": "a dog",
    "guidance_scale": 2.0,
    "height": 64,
    "width": 64,
    "num_inference_steps": 2,
    "seed": 3,
}


def write(build: Callable[[], Any], folder: Path) -> None:
    """Write the model that ``build`` makes. Parameters that it makes without a value get a random one."""
    import torch

    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # so that new memory holds NaN, and not what was there before
    try:
        model = build()
    finally:
        torch.use_deterministic_algorithms(before)
    for parameter in model.parameters():
        if parameter.isnan().any():
            torch.nn.init.normal_(parameter, std=0.02)
    model.save_pretrained(folder)


def make(folder: Path) -> Path:
    """Write it; the last part of the folder's name is one that SGLang knows the pipeline by."""
    import torch
    from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, ZImageTransformer2DModel
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    root = folder / "Z-Image-Turbo"
    torch.manual_seed(0)
    write(
        lambda: ZImageTransformer2DModel(
            dim=HEAD_SIZE * HEADS,
            n_layers=2,
            n_refiner_layers=1,
            n_heads=HEADS,
            n_kv_heads=HEADS,
            cap_feat_dim=TEXT,
            axes_dims=[8, 12, 12],
            axes_lens=[1024, 512, 512],
        ),
        root / "transformer",
    )
    config = root / "transformer" / "config.json"
    # SGLang's names of two fields, which are at the published model's values by default.
    config.write_text(json.dumps({**json.loads(config.read_text()), "num_attention_heads": HEADS, "num_layers": 2}))
    write(
        lambda: AutoencoderKL(
            down_block_types=["DownEncoderBlock2D"] * 4,
            up_block_types=["UpDecoderBlock2D"] * 4,
            block_out_channels=[32] * 4,
            latent_channels=16,
            norm_num_groups=8,
            scaling_factor=0.3611,
            shift_factor=0.1159,
            use_quant_conv=False,
            use_post_quant_conv=False,
        ),
        root / "vae",
    )
    FlowMatchEulerDiscreteScheduler(shift=3.0).save_pretrained(root / "scheduler")
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    bytes_only = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bytes_only,
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
    )
    tokenizer.chat_template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    tokenizer.save_pretrained(root / "tokenizer")
    text = Qwen3Config(
        vocab_size=len(words),
        hidden_size=TEXT,
        intermediate_size=2 * TEXT,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=HEAD_SIZE,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    write(lambda: Qwen3ForCausalLM(text), root / "text_encoder")
    parts = {
        "scheduler": ("diffusers", "FlowMatchEulerDiscreteScheduler"),
        "text_encoder": ("transformers", "Qwen3ForCausalLM"),
        "tokenizer": ("transformers", "PreTrainedTokenizerFast"),
        "transformer": ("diffusers", "ZImageTransformer2DModel"),
        "vae": ("diffusers", "AutoencoderKL"),
    }
    index = {"_class_name": "ZImagePipeline", "_diffusers_version": "0.37.0", **parts}
    (root / "model_index.json").write_text(json.dumps(index), encoding="utf-8")
    return root
