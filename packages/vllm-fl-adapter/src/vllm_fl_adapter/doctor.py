# SPDX-License-Identifier: Apache-2.0
"""What ``fl-dispatch doctor`` says about vLLM and this plug-in: version, entry points, variables that switch us off.

Looks at installed metadata and at variables only: vLLM is not imported and no device is touched.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from typing import Any

from fl_dispatch import Finding
from vllm_fl_adapter import versions
from vllm_fl_adapter.platform_choice import CPU_ENTRY_POINT

DISTRIBUTION = "vllm-fl-adapter"
#: Our name in both groups.
NAME = "vllm_fl_adapter"
PLUGINS = "vllm.general_plugins"
PLATFORMS = "vllm.platform_plugins"


def config_arguments() -> dict[str, Any]:
    """How ``VLLM_FL_*`` is read, for the entry-point group ``fl_dispatch.config``: lists take layer classes too."""
    from vllm_fl_adapter.bridges import OPERATOR_ALIASES

    return {"operator_aliases": OPERATOR_ALIASES}


def check() -> Iterator[Finding]:
    """The findings, for the entry-point group ``fl_dispatch.doctor``."""
    version = versions.installed_version()
    yield _version(version)
    yield from _entry_points()
    if version != "not installed":
        yield from _variables(os.environ)


def _version(version: str) -> Finding:
    if version == "not installed":
        return Finding("note", "vllm", "vLLM is not installed here", f"install {versions.tested_range()}")
    text = versions.verdict(version)
    if text is None:
        return Finding("ok", "vllm", f"vLLM {version}, a tested version")
    if versions.too_old(version):
        return Finding("fault", "vllm", text, "upgrade vLLM; with this one it stops when it is started")
    hint = "it stops at start-up if the places where layers are replaced have moved; look for a newer vllm-fl-adapter"
    return Finding("note", "vllm", text, hint)


def _entry_points() -> Iterator[Finding]:
    reinstall = f"install it again: pip install --force-reinstall --no-deps {DISTRIBUTION}"
    try:
        own = distribution(DISTRIBUTION).entry_points
    except PackageNotFoundError:
        text = f"{NAME} can be imported but no distribution {DISTRIBUTION} is installed, so vLLM does not find it"
        yield Finding("fault", DISTRIBUTION, text, reinstall)
        return
    missing = [group for group in (PLUGINS, PLATFORMS) if NAME not in own.select(group=group).names]
    if missing:
        text = f"broken install: entry point {NAME!r} is missing in {' and '.join(missing)}, so vLLM does not load it"
        yield Finding("fault", DISTRIBUTION, text, reinstall)
    for group in (PLUGINS, PLATFORMS):
        others = sorted({_owner(p) for p in entry_points(group=group) if p.name == NAME} - {DISTRIBUTION})
        if others:
            text = f"{', '.join(others)} also registers {NAME!r} in {group}; vLLM keeps only one of the two"
            yield Finding("fault", DISTRIBUTION, text, f"uninstall {', '.join(others)}")


def _variables(environ: Mapping[str, str]) -> Iterator[Finding]:
    plugins = environ.get("VLLM_PLUGINS")
    names = [] if plugins is None else [word.strip() for word in plugins.split(",")]
    if plugins is not None and NAME not in names:
        text = f"VLLM_PLUGINS={plugins} leaves out {NAME!r}: vLLM then serves without us"
        wanted = ",".join([*filter(None, names), NAME])
        yield Finding("fault", "VLLM_PLUGINS", text, f"VLLM_PLUGINS={wanted}, or unset it")
    if CPU_ENTRY_POINT in names:
        yield Finding("ok", "VLLM_PLUGINS", f"{CPU_ENTRY_POINT!r} selects the example platform for CPUs")
        if environ.get("VLLM_TARGET_DEVICE") == "cpu":
            text = "with VLLM_TARGET_DEVICE=cpu vLLM takes its own platform and asks no plug-in for one"
            yield Finding("fault", "VLLM_TARGET_DEVICE", text, "unset it")
    if environ.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0"):
        text = "vLLM's batch-invariant mode fixes the kernels: every layer is left to vLLM"
        yield Finding("note", "VLLM_BATCH_INVARIANT", text, "unset it to run the selected implementations")


def _owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "unknown"
