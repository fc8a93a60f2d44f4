# SPDX-License-Identifier: Apache-2.0
"""The calls that are measured: each operator in the sizes of one model, in the forms in which a model calls it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch

from fl_dispatch.errors import ConfigError
from fl_dispatch.ops.spec import Sample

MAX_POSITION = 8192


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a model; by default those of an 8B Llama.

    Args:
        hidden: width of the norms.
        intermediate: width of an activation's output.
        heads, kv_heads, head_size: of the attention.
    """

    hidden: int = 4096
    intermediate: int = 14336
    heads: int = 32
    kv_heads: int = 8
    head_size: int = 128

    @classmethod
    def of_model(cls, path: Path) -> ModelShape:
        """Read from a model's ``config.json`` (or its folder); raises ConfigError naming what is missing.

        Of a model with pictures or sound the language model is read, which its configuration has as ``text_config``.
        """
        file = path / "config.json" if path.is_dir() else path
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(
                f"--model: cannot read {str(file)!r}: {error.strerror}; name a folder with the model's config.json "
                "(nothing is downloaded)"
            ) from error
        except ValueError as error:
            raise ConfigError(f"--model: {str(file)!r} is no JSON: {error}; name a model's config.json") from error
        if isinstance(content, dict):
            content = content.get("text_config") or content

        def size(key: str) -> int:
            found = content.get(key) if isinstance(content, dict) else None
            if not isinstance(found, int) or found < 1:
                problem = f"has no {key}" if found is None else f"has {found!r} as {key}"
                raise ConfigError(f"--model: {str(file)!r} {problem}; name the configuration of a decoder")
            return found

        heads = size("num_attention_heads")
        return cls(
            hidden=size("hidden_size"),
            intermediate=size("intermediate_size"),
            heads=heads,
            kv_heads=size("num_key_value_heads") if content.get("num_key_value_heads") else heads,
            head_size=size("head_dim") if content.get("head_dim") else size("hidden_size") // heads,
        )


@dataclass(frozen=True)
class Workload:
    """One operator in one form.

    Args:
        name: for tables.
        op_name: the operator.
        sample: makes the arguments of a call: shape of the model, tokens, dtype, device type.
        bytes_moved: what such a call must read and write, each byte once: shape, tokens, bytes of an element.
    """

    name: str
    op_name: str
    sample: Callable[[ModelShape, int, torch.dtype, str], Sample]
    bytes_moved: Callable[[ModelShape, int, int], int]


def _gated(shape: ModelShape, tokens: int, dtype: torch.dtype, device: str) -> Sample:
    x = torch.randn(tokens, 2 * shape.intermediate, device=device, dtype=dtype)
    return Sample("gated", SimpleNamespace(), (x,))


def _norm(shape: ModelShape, tokens: int, dtype: torch.dtype, device: str) -> Sample:
    weight = torch.randn(shape.hidden, device=device, dtype=dtype)
    x = torch.randn(tokens, shape.hidden, device=device, dtype=dtype)
    return Sample("plain", SimpleNamespace(weight=weight, variance_epsilon=1e-6), (x,))


def _norm_residual(shape: ModelShape, tokens: int, dtype: torch.dtype, device: str) -> Sample:
    plain = _norm(shape, tokens, dtype, device)
    return Sample("residual", plain.obj, (*plain.args, torch.randn_like(plain.args[0])))


def _rotary(shape: ModelShape, tokens: int, dtype: torch.dtype, device: str) -> Sample:
    packed = torch.randn(tokens, shape.heads + 2 * shape.kv_heads, shape.head_size, device=device, dtype=dtype)
    frequencies = 10000.0 ** -(torch.arange(0, shape.head_size, 2, device=device) / shape.head_size)
    angles = torch.outer(torch.arange(MAX_POSITION, device=device), frequencies)
    cache = torch.cat((angles.cos(), angles.sin()), dim=-1)  # float32, as SGLang keeps it
    positions = torch.arange(tokens, device=device) % MAX_POSITION
    obj = SimpleNamespace(
        cos_sin_cache=cache, head_size=shape.head_size, rotary_dim=shape.head_size, is_neox_style=True
    )
    query, key = packed[:, : shape.heads], packed[:, shape.heads : shape.heads + shape.kv_heads]
    return Sample("neox", obj, (query, key, *cache.chunk(2, dim=-1), positions))


def _gated_bytes(shape: ModelShape, tokens: int, size: int) -> int:
    return 3 * tokens * shape.intermediate * size


def _norm_bytes(shape: ModelShape, tokens: int, size: int) -> int:
    return (2 * tokens + 1) * shape.hidden * size


def _residual_bytes(shape: ModelShape, tokens: int, size: int) -> int:
    return (4 * tokens + 1) * shape.hidden * size


def _rotary_bytes(shape: ModelShape, tokens: int, size: int) -> int:
    heads = 2 * (shape.heads + shape.kv_heads) * shape.head_size * size
    return tokens * (heads + shape.head_size * 4 + 8)


WORKLOADS: tuple[Workload, ...] = (
    Workload("silu_and_mul", "silu_and_mul", _gated, _gated_bytes),
    Workload("gelu_and_mul", "gelu_and_mul", _gated, _gated_bytes),
    Workload("gelu_tanh_and_mul", "gelu_tanh_and_mul", _gated, _gated_bytes),
    Workload("rms_norm", "rms_norm", _norm, _norm_bytes),
    Workload("rms_norm, residual", "rms_norm", _norm_residual, _residual_bytes),
    Workload("gemma_rms_norm", "gemma_rms_norm", _norm, _norm_bytes),
    Workload("gemma_rms_norm, residual", "gemma_rms_norm", _norm_residual, _residual_bytes),
    Workload("rotary_embedding", "rotary_embedding", _rotary, _rotary_bytes),
)
#: Operators there are calls for.
MEASURED: tuple[str, ...] = tuple(dict.fromkeys(workload.op_name for workload in WORKLOADS))
