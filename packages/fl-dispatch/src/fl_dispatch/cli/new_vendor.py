# SPDX-License-Identifier: Apache-2.0
"""``fl-dispatch new-vendor NAME``: a complete vendor package to begin with."""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fl_dispatch
from fl_dispatch.cli.text import as_json
from fl_dispatch.compatibility import distribution_of
from fl_dispatch.discovery import installed_vendors
from fl_dispatch.errors import ConfigError

_SUFFIX = ".template"
#: Folders whose names, as they have to be, packaging tools leave out.
_RENAMED = {"github-workflows": ".github/workflows", "gitignore": ".gitignore"}
#: Longer ones make paths that some file systems do not take.
_LONGEST = 64
#: Names that a vendor's package may not have even where nothing of that name is installed, with the reason.
_TAKEN = {
    **dict.fromkeys(("flagos", "vendor", "reference", "native", "impl"), "in a policy it means something else"),
    **dict.fromkeys(("cuda", "ascend"), "a vendor package of fl-dispatch's own has it"),
    **dict.fromkeys(("build", "dist", "docs", "src", "test", "tests"), "projects have folders of that name"),
    **dict.fromkeys(
        (
            *("fl_dispatch", "sglang_fl", "vllm_fl_adapter", "fl_vendor_cuda", "fl_vendor_ascend", "sglang", "vllm"),
            *("torch", "torch_npu", "triton", "flag_gems"),
            *("numpy", "yaml", "packaging", "pip", "pytest", "setuptools", "wheel"),
        ),
        "it would hide or replace the package of that name",
    ),
}


def add_parser(subparsers: Any) -> None:
    """Add this command to the command line."""
    parser = subparsers.add_parser(
        "new-vendor",
        help="a complete vendor package to begin with",
        description="Writes a vendor package: entry point, backend class, three operators in plain PyTorch that run "
        "anywhere, platform facts, tests with the conformance kit, README and CI. Then replace one operator after "
        "the other by your kernels; the tests say when one is right.",
    )
    parser.add_argument("name", metavar="NAME", help="the vendor's name, for example my_chip: lower case, digits, _")
    parser.add_argument(
        "--output", metavar="DIR", type=Path, help="the new folder of the package (default: the name with - for _)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> tuple[str, int]:
    """Carry it out; returns the text to print and the exit code."""
    check_name(args.name)
    folder = args.output if args.output is not None else Path(args.name.replace("_", "-"))
    try:
        if folder.is_symlink() and not folder.exists():
            raise ConfigError(f"{folder} is a link to nothing; name another folder with --output DIR")
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"{folder} exists already; nothing was written. Name another folder with --output DIR")
        written = render(args.name, folder)
    except OSError as error:
        raise ConfigError(
            f"cannot write {str(error.filename or folder)!r}: {error.strerror}; "
            "name a new folder, where you may write, with --output DIR"
        ) from error
    if args.json:
        return as_json({"folder": str(folder), "files": [str(path) for path in written]}), 0
    lines = [f"vendor {args.name} in {folder}", *(f"  {path}" for path in written), "", "next:"]
    lines += [
        f"  cd {folder}",
        "  pip install -e '.[test]'     # into the environment that has fl-dispatch",
        "  pytest                       # the conformance kit: every operator, on this machine",
        "  fl-dispatch list             # your vendor beside the others",
    ]
    return "\n".join(lines), 0


def check_name(name: str) -> None:
    """Raise ConfigError unless the name can be a vendor's, an entry point's and a Python package's at once."""
    better = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    hint = f"; {better!r} would do" if re.fullmatch(r"[a-z][a-z0-9_]*", better) and better != name else ""
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        raise ConfigError(
            f"{name!r} cannot be a vendor's name: it is a Python package's too, so lower-case letters and digits with "
            f"single underscores between them, a letter first{hint}"
        )
    if len(name) > _LONGEST:
        raise ConfigError(f"a vendor's name has at most {_LONGEST} characters, this one {len(name)}; shorten it")
    reason = _taken(name)
    if reason is not None:
        raise ConfigError(f"{name!r} is taken: {reason}; for example {name + '_chip'!r}")


def _taken(name: str) -> str | None:
    """Why a new vendor's package, distribution and entry point may not be named so, or None."""
    if keyword.iskeyword(name) or name in sys.stdlib_module_names:
        return "Python itself has it"
    if name in _TAKEN:
        return _TAKEN[name]
    point = installed_vendors().get(name)
    if point is not None:
        return f"{' '.join(distribution_of(point))}, which is installed, has a vendor of that name"
    try:
        return f"{name} {version(name)} is installed, which pip would replace by it"
    except PackageNotFoundError:
        pass
    try:
        importable = find_spec(name) is not None
    except ValueError:  # a module that is loaded and does not say where from
        importable = True
    return "this environment has a package of that name, which it would hide" if importable else None


def render(name: str, folder: Path) -> list[Path]:
    """Write all files of the template for one vendor; returns their paths inside of the folder, sorted."""
    camel = "".join(part.capitalize() for part in name.split("_"))
    words = {
        "my_chip": name,
        "my-chip": name.replace("_", "-"),
        "MyChip": camel,
        "FL_DISPATCH_VERSIONS": _versions(fl_dispatch.__version__),
    }
    pattern = re.compile("|".join(map(re.escape, words)))

    def replaced(text: str) -> str:
        return pattern.sub(lambda match: words[match.group()], text)

    written = []
    for relative, source in _templates(files("fl_dispatch") / "templates" / "vendor"):
        path = Path(replaced(relative))
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(replaced(source.read_text(encoding="utf-8")), encoding="utf-8")
        written.append(path)
    return sorted(written)


def _versions(current: str) -> str:
    """From this release to before the next one that may break a vendor: a minor one until 1.0 (docs/versioning.md)."""
    major, minor = map(int, current.split(".")[:2])
    return f">={current},<{f'0.{minor + 1}' if major == 0 else major + 1}"


def _templates(folder: Traversable, prefix: str = "") -> list[tuple[str, Traversable]]:
    """(path in the rendered package, file) of every template."""
    found = []
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        plain = entry.name.removesuffix(_SUFFIX)
        path = prefix + _RENAMED.get(plain, plain)
        if entry.is_dir():
            found += _templates(entry, path + "/")
        elif entry.name.endswith(_SUFFIX):
            found.append((path, entry))
    return found
