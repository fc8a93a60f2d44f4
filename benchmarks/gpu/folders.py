# SPDX-License-Identifier: Apache-2.0
"""Where packages lie on the GPU box, and how they come there from the parts of ``prepare.py``."""

from __future__ import annotations

import hashlib
import json
import shutil
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
PARTS = tomllib.loads((HERE / "parts.toml").read_text(encoding="utf-8"))


def framework(step: str) -> str:
    """The framework that a step runs, or whose packages it takes: vLLM where its name says so."""
    return "vllm" if "vllm" in step else "sglang"


@dataclass(frozen=True)
class Folders:
    """Where things lie on the box.

    Args:
        site: SGLang with the kernels; beside it ``-own`` (this repository's packages, which can be left out), ``-vllm`` (vLLM with
            the kernels), ``-model`` (the real model) and what is needed to make them.
        out: for results.
    """

    site: Path
    out: Path

    def beside(self, what: str) -> Path:
        """A folder next to ``site``."""
        return self.site.with_name(f"{self.site.name}-{what}")

    @property
    def own(self) -> Path:
        """This repository's packages."""
        return self.beside("own")

    def framework(self, name: str) -> Path:
        """The packages of ``sglang`` or ``vllm``."""
        return self.site if name == "sglang" else self.beside(name)

    def of_step(self, step: str) -> Path:
        """The packages that a step runs with, besides our own."""
        return self.framework(framework(step))


def unpack(parts: Path, folders: Folders) -> None:
    """Every part that is new or another one than before into the folders of the frameworks it is for."""
    noted = folders.beside("unpacked.json")
    done: dict[str, str] = json.loads(noted.read_text(encoding="utf-8")) if noted.exists() else {}
    for part in sorted(path for path in parts.iterdir() if path.is_dir()) if parts.is_dir() else []:
        files = sorted(file for file in part.iterdir() if file.is_file())
        content = hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)).hexdigest()
        if not files or done.get(part.name) == content:
            continue
        for target in targets(part.name, folders):
            if part.name == "own":
                shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True, exist_ok=True)
            for file in files:
                if file.suffix == ".whl":
                    zipfile.ZipFile(file).extractall(target)
                else:
                    shutil.copy(file, target)
        print(f"unpacked {part.name}", flush=True)
        done[part.name] = content
        noted.write_text(json.dumps(done), encoding="utf-8")
    for name in ("sglang", "vllm"):
        folder = folders.framework(name)
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(HERE / "absent.py", folder / "sitecustomize.py")


def targets(part: str, folders: Folders) -> list[Path]:
    """Where a part belongs."""
    if part == "own":
        return [folders.own]
    if part.startswith("model"):
        return [folders.beside("pieces")]
    return [folders.framework(name) for name in PARTS.get(part, {}).get("sites", ["sglang"])]
