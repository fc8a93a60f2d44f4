# SPDX-License-Identifier: Apache-2.0
"""The virtual environments: what each one holds, and how one is built or reused."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fltool import requirements
from fltool.paths import ENVS, LOGS, PACKAGES, REQUIREMENTS, TOOLS, relative
from fltool.process import ToolError, clean_environment, run_logged, timed
from fltool.stamps import Stamp, fingerprint, locked

# Raise it when the way of building changes so that environments built before are of no use.
BUILD_VERSION = "1"

SHIM = TOOLS / "fltool" / "torchvision_shim.py"
PIP_HINT = (
    "is the package index reachable? Run the same command again to continue where it stopped; --recreate starts over."
    " The lists were made with Python 3.11 on Linux: elsewhere a pinned version may have no wheel"
)


@dataclass(frozen=True)
class Environment:
    """One virtual environment, made from ``tools/requirements/NAME.txt`` and the repository's own packages.

    Args:
        name: its folder under .envs and its requirement list.
        excluded_packages: folders of packages/ that make no sense here.
        metadata_only: projects under tools/ that add a distribution name and no code.
        torchvision_shim: PyPI's torchvision is installed, which needs help beside a CPU build of torch.
        probe: a statement that works if the engine is whole. Running it once also compiles what it imports, which the
            first test would otherwise wait for.
    """

    name: str
    probe: str
    excluded_packages: frozenset[str] = frozenset()
    metadata_only: tuple[str, ...] = ()
    torchvision_shim: bool = False

    @property
    def folder(self) -> Path:
        """The virtual environment."""
        return ENVS / self.name

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """Where its packages are installed."""
        return self.folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"

    @property
    def lists(self) -> tuple[Path, Path]:
        """Its requirement lists."""
        return REQUIREMENTS / f"{self.name}.txt", REQUIREMENTS / "test.txt"

    def packages(self) -> list[Path]:
        """The repository's packages that belong in here, those that have code."""
        folders = sorted(path.parent for path in PACKAGES.glob("*/pyproject.toml") if (path.parent / "src").is_dir())
        return [folder for folder in folders if folder.name not in self.excluded_packages]

    def variables(self, extra: Mapping[str, str] | None = None, *, keep_settings: bool = False) -> dict[str, str]:
        """Environment variables of an activated shell, without what leaks in from the user's."""
        result = clean_environment(extra, keep_settings=keep_settings)
        result["VIRTUAL_ENV"] = str(self.folder)
        result["PATH"] = f"{self.folder / 'bin'}:{result.get('PATH', '/usr/bin:/bin')}"
        return result


# No environment here has a GPU or an NPU: installed, these would only be more lines of reasons in every listing.
_NO_DEVICE = frozenset({"fl-vendor-cuda", "fl-vendor-ascend"})
_NO_VLLM = _NO_DEVICE | {"vllm-fl-adapter"}
_NO_SGLANG = _NO_DEVICE | {"sglang-fl"}
_SGLANG_PROBE = "from sglang.srt.layers.layernorm import RMSNorm"
_VLLM_PROBE = "from vllm.model_executor.layers.layernorm import RMSNorm"
ENVIRONMENTS = {
    env.name: env
    for env in (
        Environment("dev", "import torch", _NO_DEVICE),
        Environment("sglang-0.5.23", _SGLANG_PROBE, _NO_VLLM, torchvision_shim=True),
        Environment("sglang-0.5.17", _SGLANG_PROBE, _NO_VLLM, torchvision_shim=True),
        Environment("vllm-0.32", _VLLM_PROBE, _NO_SGLANG, metadata_only=("vllm-metadata",)),
    )
}


def ensure(env: Environment, *, recreate: bool = False, wheels: bool = False) -> None:
    """Build the environment, continue an interrupted build, or reuse what is up to date.

    Args:
        env: which.
        recreate: delete it first.
        wheels: install the repository's packages as built wheels (as users get them), not in editable form.

    Raises:
        ToolError: a command failed; the message is for the user.
    """
    started = time.monotonic()
    with locked(ENVS / f"{env.name}.lock"):
        stamp = Stamp(env.folder / "fl-stamp.json")
        wanted = _requirements_fingerprint(env)
        # An unfinished folder is continued if it was begun from the same lists; pip skips what is installed.
        stale = not env.python.exists() or not stamp.matches("begun", wanted)
        if recreate or stale:
            print(f"{env.name}: building {relative(env.folder)}", flush=True)
            _create(env)
            stamp.write("begun", wanted)
        if not stamp.matches("requirements", wanted):
            _install_requirements(env)
            stamp.write("requirements", wanted)
        extras = _extras_fingerprint(env)
        if not stamp.matches("extras", extras):
            _install_extras(env)
            stamp.write("extras", extras)
        packages = _packages_fingerprint(env, wheels=wheels)
        if not stamp.matches("packages", packages):
            _install_packages(env, wheels=wheels)
            stamp.write("packages", packages)
    print(f"{env.name}: ready in {time.monotonic() - started:.1f} s", flush=True)


def _requirements_fingerprint(env: Environment) -> str:
    # The folder is part of it because scripts in a virtual environment hold its absolute path.
    return fingerprint(values=(BUILD_VERSION, str(env.folder), f"{sys.version_info[:2]}"), files=env.lists)


def _extras_fingerprint(env: Environment) -> str:
    metadata = [TOOLS / name / "pyproject.toml" for name in env.metadata_only]
    return fingerprint(values=[env.probe], files=[*metadata, *([SHIM] if env.torchvision_shim else [])])


def _packages_fingerprint(env: Environment, *, wheels: bool) -> str:
    files: list[Path] = []
    for folder in env.packages():
        # Editable: the code is read in place, but entry points and metadata are copied when installing.
        pattern = "**/*" if wheels else "pyproject.toml"
        files += [path for path in folder.glob(pattern) if path.is_file() and "__pycache__" not in path.parts]
    values = ["wheels" if wheels else "editable", *(str(path) for path in sorted(files))]
    return fingerprint(values=values, files=files)


def _create(env: Environment) -> None:
    with timed("virtual environment"):
        if env.folder.exists():
            shutil.rmtree(env.folder)
        run_logged(
            [sys.executable, "-m", "venv", str(env.folder)],
            log=LOGS / f"{env.name}-venv.log",
            hint="on Debian and Ubuntu this needs the package python3-venv (python3.11-venv)",
        )


def _install_requirements(env: Environment) -> None:
    main, test = env.lists
    torch = requirements.pins(main).get("torch")
    if torch is not None:
        # torch comes first and *with* its dependencies. A CPU build has a few small ones, all of them in the list;
        # a CUDA build brings the nvidia libraries without which it does not import. The list holds both to its pins.
        with timed(f"torch {torch}"):
            pip(env, "torch", "install", "-c", str(main), f"torch=={torch}")
    with timed(f"{len(requirements.pins(main, test))} packages of {relative(main)} and {test.name}"):
        pip(env, "requirements", "install", "--no-deps", "-r", str(main), "-r", str(test))


def _install_extras(env: Environment) -> None:
    if env.torchvision_shim:
        shutil.copyfile(SHIM, env.site_packages / "_fl_torchvision_shim.py")
        # A .pth line is run when the interpreter starts, in the engines' worker processes too.
        (env.site_packages / "_fl_torchvision_shim.pth").write_text("import _fl_torchvision_shim\n", encoding="utf-8")
    if env.metadata_only:
        _pip_local(env, "metadata", [str(TOOLS / name) for name in env.metadata_only])
    with timed(f"try: {env.probe}"):
        run_logged(
            [str(env.python), "-c", env.probe],
            log=LOGS / f"{env.name}-probe.log",
            hint="the packages are installed but do not work here; --recreate installs them anew",
            environment=env.variables({"OMP_NUM_THREADS": "1"}),
        )


def _install_packages(env: Environment, *, wheels: bool) -> None:
    folders = env.packages()
    if folders:
        with timed(f"{', '.join(folder.name for folder in folders)} ({'wheels' if wheels else 'editable'})"):
            _pip_local(env, "packages", [str(folder) if wheels else f"--editable={folder}" for folder in folders])


def _pip_local(env: Environment, step: str, targets: Sequence[str]) -> None:
    # Without isolation the build backend of test.txt is used and nothing is fetched; without force-reinstall a package
    # of unchanged version would stay as it was.
    pip(env, step, "install", "--no-deps", "--no-build-isolation", "--force-reinstall", *targets)


def pip(env: Environment, step: str, command: str, *arguments: str) -> None:
    """Run pip of the environment quietly, its output in a log named after the step.

    Raises:
        CommandFailed: it failed.
    """
    options = ["--no-input", "--disable-pip-version-check", "--progress-bar=off", "--root-user-action=ignore"]
    # Most modules of an engine are never imported here; Python compiles the others when it first imports them.
    options.append("--no-compile")
    run_logged(
        [str(env.python), "-m", "pip", command, *options, *arguments],
        log=LOGS / f"{env.name}-{step}.log",
        hint=PIP_HINT,
    )


def named(name: str) -> Environment:
    """The environment of that name.

    Raises:
        ToolError: there is none.
    """
    if name not in ENVIRONMENTS:
        raise ToolError(f"unknown environment {name!r}; there are: {', '.join(ENVIRONMENTS)}")
    return ENVIRONMENTS[name]
