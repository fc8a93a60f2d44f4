# SPDX-License-Identifier: Apache-2.0
"""Groups of engines that are compared with each other: which there are, how they start, what their layers run."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from engines import Engine, all_ready, framework_variables, stop_all
from figures import EAGER_JOBS, JOBS, Job
from placement import choose
from policies import not_as_tuned, policy_file, printed_table


@dataclasses.dataclass(frozen=True)
class Group:
    """Engines that are compared with the first of them.

    Args:
        framework: ``"sglang"`` or ``"vllm"``.
        engines: name to variables without their prefix; None is an engine without this repository's packages. ``CONFIG`` names a
            file as ``policy_file`` takes it.
        jobs: what they serve.
        options: of the engine script.
    """

    framework: str
    engines: Mapping[str, Mapping[str, str] | None]
    jobs: Mapping[str, Job]
    options: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The framework as it writes itself."""
        return "SGLang" if self.framework == "sglang" else "vLLM"

    @property
    def prefix(self) -> str:
        """Of the variables."""
        return "SGLANG_FL_" if self.framework == "sglang" else "VLLM_FL_"

    def only(self, names: Sequence[str], further: Mapping[str, Mapping[str, str]] = MappingProxyType({})) -> Group:
        """The group with these of its engines alone, and of ``further`` ones. A name that is none of them ends the program."""
        known = {**self.engines, **further}
        unknown = [name for name in names if name not in known]
        if unknown:
            raise SystemExit(f"unknown engine {unknown[0]!r}; there are: {', '.join(known)}")
        return dataclasses.replace(self, engines={name: known[name] for name in names})


def listed(text: str, what: str = "engine", separator: str = ",") -> list[str]:
    """Names of an option without the spaces around them and without nothings; where that is all there is, the program ends."""
    found = [name for part in text.split(separator) if (name := part.strip())]
    if not found:
        raise SystemExit(f"{text!r} names no {what}")
    return found


def _engines(tuned: str | None) -> dict[str, Mapping[str, str] | None]:
    policy: dict[str, Mapping[str, str] | None] = {} if tuned is None else {"tuned": {"CONFIG": tuned}}
    return {"native": None, "native again": None, **policy, "vendor": {"PREFER": "vendor"}, "flagos": {}}


GROUPS: dict[str, Group] = {
    "CUDA graphs": Group("sglang", _engines("fl-tuned.yaml"), JOBS),
    "eager": Group("sglang", _engines("fl-tuned-eager.yaml"), EAGER_JOBS, ("--eager",)),
    "piecewise CUDA graphs": Group("sglang", _engines(None), JOBS, ("--piecewise",)),
    "vLLM compiled": Group("vllm", _engines("fl-tuned-vllm.yaml"), JOBS),
    "vLLM eager": Group("vllm", _engines("fl-tuned-vllm-eager.yaml"), EAGER_JOBS, ("--eager",)),
}
#: Engines for where there is no GPU: the framework's own methods through the adapter, and PyTorch's.
ON_ANY_DEVICE: Mapping[str, Mapping[str, str]] = {
    "switched off": {"OOT_WHITELIST": "none"},
    "reference": {"PREFER": "reference"},
}


def group_of(framework: str, eager: bool, names: Sequence[str]) -> Group:
    """Some engines of the group with graphs or the eager one; also those that run on any device."""
    by_mode = {"sglang": ("CUDA graphs", "eager"), "vllm": ("vLLM compiled", "vLLM eager")}
    group = GROUPS[by_mode[framework][eager]]
    return group.only(names, ON_ANY_DEVICE)


def start_group(
    group: Group,
    name: str,
    arguments: Any,
    failed: dict[str, str],
    further: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> tuple[list[Engine], dict[str, Path]]:
    """Start a group's engines together and wait for them.

    Args:
        group: the engines.
        name: becomes a part of theirs.
        arguments: the folders, and ``engine_options``.
        failed: takes engines that do not come up, with the reason.
        further: engine to further variables.

    Returns:
        those that are up, and the policy file of each that has one.
    """
    started: list[Engine] = []
    files: dict[str, Path] = {}
    try:
        for short, settings in group.engines.items():
            variables = {**framework_variables(group.framework), **further.get(short, {})}
            full = short if name == "CUDA graphs" else f"{short}, {name}"
            for key, value in (settings or {}).items():
                if key == "CONFIG":
                    try:
                        files[full] = policy_file(value, arguments.out)
                    except FileNotFoundError as error:
                        failed[full] = str(error)
                        break
                    value = str(files[full])
                variables[group.prefix + key] = value
            else:
                options = [*group.options, *arguments.engine_options]
                script = "engine.py" if group.framework == "sglang" else "vllm_engine.py"
                own = settings is not None
                engine = Engine(full, own, False, variables, arguments, *options, script=script, wait=False)
                started.append(engine)
        return all_ready(started, failed), files
    except BaseException:
        stop_all(started)
        raise


def note_layers(result: dict[str, Any], group: Group, engines: Sequence[Engine], files: Mapping[str, Path]) -> None:
    """What the layers of each engine run, and what is not as its tuned policy says, into the result."""
    for engine in engines:
        rows = printed_table(engine.text())
        if rows:
            result["choices"][engine.name] = [
                f"{row.operator}, {row.layers} x {row.layer_class}: {row.implementation}, {row.why}" for row in rows
            ]
        if engine.name in files and group.framework == "sglang":
            policy = yaml.safe_load(files[engine.name].read_text(encoding="utf-8"))
            result["problems"] += [f"{engine.name}: {text}" for text in not_as_tuned(policy, rows)]
    result["policies"] = {engine: file.name for engine, file in files.items()}


def place(result: dict[str, Any], engines: Sequence[Engine]) -> None:
    """Move the threads of all engines to the same CPUs, where there are enough, and say so in the result."""
    placement = choose(os.sched_getaffinity(0))
    if placement is not None:
        result["setting"] += f" CPUs: {placement}."
        for engine in engines:
            engine.place(placement)
