# SPDX-License-Identifier: Apache-2.0
"""The layers between the repository's packages, for every package that exists. Read from the source, nothing is run.

Adapters and vendor packages never import each other and see the core through its public names only; the core sees none
of them. import-linter (pyproject.toml) holds the same for imports through third modules; this holds what it cannot say.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from fltool.paths import PACKAGES, ROOT
from fltool.suite import source_folders

CORE = "fl_dispatch"
PUBLIC = {CORE, f"{CORE}.backends", f"{CORE}.ops", f"{CORE}.testing", f"{CORE}.types"}
# Re-exports names for vendor code that was written against the paths of the former in-tree dispatch.
EXEMPT = "sglang_fl.dispatch"
# Third-party modules and the only places that may import them.
OWNERS = {
    "sglang": ("sglang_fl",),
    "vllm": ("vllm_fl_adapter",),
    "sgl_kernel": ("fl_vendor_cuda",),
    "torch_npu": ("fl_vendor_ascend",),
    "flag_gems": (f"{CORE}.backends.flagos",),
}
HEAVY = ("torch", *OWNERS)
SOURCES = {
    folder.name: folder for folder in sorted(PACKAGES.glob("*/src/*")) if folder.is_dir() and folder.name.isidentifier()
}


def imports(source: str) -> Iterator[str]:
    """Dotted names that a module imports anywhere, ``from a import b`` as ``a.b``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in {"import_module", "__import__"}:
            argument = node.args[0] if node.args else None
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield argument.value


def within(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def is_public(name: str, core: Path) -> bool:
    """Whether a dotted name below the core is one of its public names.

    ``fl_dispatch.Policy`` is, being no module; ``fl_dispatch.manager`` is not, and neither is anything below it.
    """
    if name in PUBLIC:
        return True
    parent, _, last = name.rpartition(".")
    folder = core.joinpath(*parent.split(".")[1:])
    return parent in PUBLIC and not (folder / f"{last}.py").exists() and not (folder / last).is_dir()


def violations(module: str, source: str, packages: set[str], core: Path) -> list[str]:
    """What a module imports against the rules, each with the rule."""
    package = module.partition(".")[0]
    found = []
    for name in imports(source):
        top = name.partition(".")[0]
        owners = OWNERS.get(top)
        if owners and not any(within(module, owner) for owner in owners):
            found.append(f"{module} imports {name}: only {' and '.join(owners)} may")
        elif top in packages - {package, CORE}:
            found.append(f"{module} imports {name}: packages meet through entry points")
        elif top == CORE != package and not within(module, EXEMPT) and not is_public(name, core):
            found.append(f"{module} imports {name}: not a public name of {CORE}")
    return found


@pytest.mark.parametrize("package", sorted(SOURCES))
def test_a_package_imports_only_what_its_layer_may(package: str) -> None:
    folder = SOURCES[package]
    found = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found += violations(module, path.read_text(encoding="utf-8"), set(SOURCES), SOURCES[CORE])
    assert not found, "\n".join(found)


@pytest.mark.parametrize("package", sorted(SOURCES))
def test_importing_a_package_loads_no_framework_and_no_kernel_library(package: str) -> None:
    program = f"import sys, {package}; print([name for name in {HEAVY!r} if name in sys.modules])"
    path = os.pathsep.join(str(folder.parent) for folder in SOURCES.values())
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


@pytest.fixture
def core(tmp_path: Path) -> Path:
    """A core with a private module, a private package and a public package."""
    for name in ("manager.py", "backends/__init__.py", "backends/flagos.py", "ops/__init__.py"):
        path = tmp_path / CORE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path / CORE


@pytest.mark.parametrize(
    "source",
    [
        "import fl_dispatch.manager",
        "from fl_dispatch import manager",
        "from fl_dispatch.manager import OpManager",
        "from fl_dispatch.backends.flagos import X",
        "def f():\n    from fl_dispatch.manager import OpManager",
        "import importlib\nimportlib.import_module('fl_dispatch.manager')",
        "import vllm_fl_adapter",
        "import vllm",
        "import flag_gems",
    ],
)
def test_an_adapter_may_not(core: Path, source: str) -> None:
    assert len(violations("sglang_fl.bridge", source, {CORE, "sglang_fl", "vllm_fl_adapter"}, core)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import fl_dispatch",
        "from fl_dispatch import OpManager, ops",
        "from fl_dispatch.ops import rms_norm",
        "from fl_dispatch.backends import Backend",
        "from fl_dispatch.types import OpImpl",
        "import sglang.srt.layers",
        "from sglang_fl.seams import seam",
    ],
)
def test_an_adapter_may(core: Path, source: str) -> None:
    assert violations("sglang_fl.bridge", source, {CORE, "sglang_fl", "vllm_fl_adapter"}, core) == []


def test_the_core_may_import_flag_gems_in_its_backend_only(core: Path) -> None:
    assert violations("fl_dispatch.backends.flagos", "import flag_gems", {CORE}, core) == []
    assert len(violations("fl_dispatch.manager", "import flag_gems", {CORE}, core)) == 1


def test_the_core_may_import_its_own_modules_and_no_adapter(core: Path) -> None:
    assert violations("fl_dispatch.cli", "from fl_dispatch.manager import OpManager", {CORE, "sglang_fl"}, core) == []
    assert len(violations("fl_dispatch.cli", "import sglang_fl", {CORE, "sglang_fl"}, core)) == 1


def test_old_in_tree_paths_may_re_export_anything_of_the_core(core: Path) -> None:
    assert (
        violations("sglang_fl.dispatch.manager", "from fl_dispatch.manager import X", {CORE, "sglang_fl"}, core) == []
    )


def test_import_linter_reads_exactly_the_packages_that_have_code() -> None:
    """It stops, and checks nothing, at a package that it cannot find; one that it is not told of is not checked."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    reachable = {path.name for folder in source_folders() for path in folder.iterdir() if path.name in SOURCES}
    assert set(settings["tool"]["importlinter"]["root_packages"]) == reachable == set(SOURCES)
