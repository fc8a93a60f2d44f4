# SPDX-License-Identifier: Apache-2.0
"""A clean environment, installed vendors made on the spot, and the command in this process or in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import fl_dispatch
from fl_dispatch.cli import main

_SOURCE = Path(fl_dispatch.__file__).parents[1]
_FOREIGN_VARIABLES = ("FL_DISPATCH_", "SGLANG_", "VLLM_", "USE_FLAGGEMS", "COLUMNS")

#: A vendor with one implementation; it also talks on standard output while it loads.
GOOD = """
    from fl_dispatch import BackendImplKind, OpImpl

    def rms_norm(obj, x, residual=None):
        return x

    def register(registry):
        print("a vendor that talks")
        registry.register(
            OpImpl("rms_norm", "vendor.good", BackendImplKind.VENDOR, rms_norm, vendor="good",
                   dtypes={"float16", "bfloat16"}, mutates={"residual"})
        )
    """
#: One good and one refused implementation.
PARTIAL = """
    from fl_dispatch import BackendImplKind, OpImpl

    def impl(op_name, fn):
        return OpImpl(op_name, "vendor.partial", BackendImplKind.VENDOR, fn, vendor="partial",
                      available=lambda: "its SDK sees no device")

    def register(registry):
        registry.register_many([impl("silu_and_mul", lambda obj, x: x), impl("rms_norm", lambda obj, x: x)])
    """
SOURCES = {
    "good": GOOD,
    "partial": PARTIAL,
    "broken": "raise ImportError('libbroken.so.1: cannot open shared object file')",
}


@dataclass
class Result:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(_FOREIGN_VARIABLES):
            monkeypatch.delenv(name)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on ``sys.path`` for distributions; what was imported from it is forgotten afterwards."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]


Install = Callable[..., None]


@pytest.fixture
def install(site: Path) -> Install:
    """``install(name, source, entry_points={group: {name: value}})``: a distribution as pip leaves it behind."""

    def install(
        name: str, source: str = "", entry_points: Mapping[str, Mapping[str, str]] | None = None, version: str = "1.0"
    ) -> None:
        module = name.replace("-", "_")
        (site / f"{module}.py").write_text(textwrap.dedent(source), encoding="utf-8")
        info = site / f"{module}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
        lines = []
        for group, points in (entry_points or {}).items():
            lines += [f"[{group}]", *(f"{key} = {value}" for key, value in points.items())]
        (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")

    return install


@pytest.fixture
def install_vendor(install: Install) -> Callable[..., None]:
    """``install_vendor("good")`` installs the distribution ``fl-good`` with the vendor ``good`` of ``SOURCES``."""

    def install_vendor(name: str, source: str | None = None) -> None:
        points = {"fl_dispatch.vendors": {name: f"fl_{name}:register"}}
        install(f"fl-{name}", SOURCES[name] if source is None else source, points)

    return install_vendor


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """``run("list", "--json")``: the command in this process, with the core's own prefix unless another is given."""

    def run(*words: str) -> Result:
        capfd.readouterr()
        prefix = () if "--prefix" in words else ("--prefix", "FL_DISPATCH_")
        code = main([words[0], *prefix, *words[1:]])
        out, err = capfd.readouterr()
        return Result(code, out, err)

    return run


@pytest.fixture
def spawn(tmp_path: Path) -> Callable[..., Result]:
    """``spawn("list")``: ``python -m fl_dispatch list`` in a process of its own; ``code=`` runs other Python code."""

    def spawn(*words: str, code: str | None = None, env: Mapping[str, str] | None = None) -> Result:
        path = [str(tmp_path / "site"), str(_SOURCE), os.environ.get("PYTHONPATH", "")]
        command = ["-m", "fl_dispatch", *words] if code is None else ["-c", code, *words]
        done = subprocess.run(
            [sys.executable, *command],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), **(env or {})},
            capture_output=True,
            text=True,
            timeout=120,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    return spawn
