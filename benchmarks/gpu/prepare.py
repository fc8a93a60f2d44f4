# SPDX-License-Identifier: Apache-2.0
"""Collect what an offline GPU box lacks: wheels for Python 3.12 on x86-64, in parts small enough to carry.

    python benchmarks/gpu/prepare.py [PART...]        # .gpu-parts/PART/*.whl, all parts of parts.toml by default

Needs a package index. Wheels that are there already are kept, except those of this repository's own packages.
"""

from __future__ import annotations

import argparse
import fnmatch
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

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


def download(requirement: str, folder: Path) -> Path:
    """One wheel without its dependencies; the one that is there if it was downloaded before."""
    name, _, version = requirement.partition("==")
    found = list(folder.glob(f"{name.replace('-', '_')}-{version or '*'}-*.whl"))
    if not found:
        platforms = [f"--platform={tag}" for tag in TAGS]
        target = ["--python-version=3.12", "--only-binary=:all:", *platforms]
        pip("download", "--no-deps", *target, "--dest", str(folder), requirement)
        found = list(folder.glob(f"{name.replace('-', '_')}-{version or '*'}-*.whl"))
    return found[0]


def trim(requirement: str, keep: list[str], folder: Path) -> None:
    """One wheel with only those of its files whose names match a pattern."""
    name, _, version = requirement.partition("==")
    if list(folder.glob(f"{name.replace('-', '_')}-{version}-*.whl")):
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


def make(part: str, content: dict[str, Any], out: Path) -> None:
    """Fill the folder of one part and print its size."""
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
    wheels = list(folder.glob("*.whl"))
    size = sum(wheel.stat().st_size for wheel in wheels) / 1e6
    print(f"{part}: {len(wheels)} wheels, {size:.1f} MB")
    if size > LIMIT_MB:
        raise SystemExit(f"{part} is larger than {LIMIT_MB} MB; split it")


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
