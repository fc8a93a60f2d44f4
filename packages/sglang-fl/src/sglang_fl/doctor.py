# SPDX-License-Identifier: Apache-2.0
"""What ``fl-dispatch doctor`` says about SGLang and this plug-in: version, entry points, variables that switch us off.

Looks at installed metadata and at variables only: SGLang is not imported and no device is touched.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from typing import Any

from fl_dispatch import Finding
from sglang_fl import versions

DISTRIBUTION = "sglang-fl"
#: Our name in both groups.
NAME = "sglang_fl"
PLUGINS = "sglang.srt.plugins"
PLATFORMS = "sglang.srt.platforms"
#: What an entry point of PLUGINS names when it loads us, whichever distribution and name it has.
LOADER = "sglang_fl:load_plugin"

#: Where the way to have another platform with our operators is described.
GUIDE = "docs/platforms.md, Another platform with our operators"

#: From here on SGLang takes a forced backend before it looks at anything that can be hooked.
_FIRST_WITH_FORCED_BACKEND = (0, 5, 18)


def config_arguments() -> dict[str, Any]:
    """How ``SGLANG_FL_*`` is read, for the entry-point group ``fl_dispatch.config``: lists take layer classes too."""
    from sglang_fl.bridges import OPERATOR_ALIASES

    return {"operator_aliases": OPERATOR_ALIASES}


def check() -> Iterator[Finding]:
    """The findings, for the entry-point group ``fl_dispatch.doctor``."""
    version = versions.installed_version()
    yield _version(version)
    yield from _entry_points()
    if version != "not installed":
        yield from _variables(os.environ, versions.release(version))


def _version(version: str) -> Finding:
    if version == "not installed":
        return Finding("note", "sglang", "SGLang is not installed here", f"install {versions.tested_range()}")
    text = versions.verdict(version)
    if text is None:
        return Finding("ok", "sglang", f"SGLang {version}, a tested version")
    if versions.too_old(version):
        return Finding("fault", "sglang", text, "upgrade SGLang")
    hint = "it stops at start-up if the place where SGLang decides has moved; look for a newer sglang-fl"
    return Finding("note", "sglang", text, hint)


def _entry_points() -> Iterator[Finding]:
    reinstall = f"install it again: pip install --force-reinstall --no-deps {DISTRIBUTION}"
    try:
        own = distribution(DISTRIBUTION).entry_points
    except PackageNotFoundError:
        text = f"{NAME} can be imported but no distribution {DISTRIBUTION} is installed, so SGLang does not find it"
        yield Finding("fault", DISTRIBUTION, text, reinstall)
        return
    missing = [group for group in (PLUGINS, PLATFORMS) if NAME not in own.select(group=group).names]
    if missing:
        text = f"broken install: entry point {NAME!r} is missing in {' and '.join(missing)}, so SGLang does not load it"
        yield Finding("fault", DISTRIBUTION, text, reinstall)
    for group in (PLUGINS, PLATFORMS):
        others = sorted({_owner(p) for p in entry_points(group=group) if p.name == NAME} - {DISTRIBUTION})
        if others:
            text = f"{', '.join(others)} also registers {NAME!r} in {group}; SGLang keeps only one of the two"
            yield Finding("fault", DISTRIBUTION, text, f"uninstall {', '.join(others)}")


def _variables(environ: Mapping[str, str], release: tuple[int, ...]) -> Iterator[Finding]:
    selected = environ.get("SGLANG_PLATFORM", "")
    loaders = _left_by_platform(selected)
    yield from _platform(selected, loaders)
    yield from _list(environ.get("SGLANG_PLUGINS", ""), {loader.name for loader in loaders} or {NAME})
    forced = environ.get("SGLANG_FORCE_FUSED_OP_BACKEND")
    if forced is None:
        return
    if release >= _FIRST_WITH_FORCED_BACKEND:
        text = f"{forced!r} is forced: every layer that has this backend runs it and goes round the dispatcher"
        hint = "unset it; to run plain PyTorch, set SGLANG_FL_PREFER=reference"
        yield Finding("fault", "SGLANG_FORCE_FUSED_OP_BACKEND", text, hint)
    else:
        text = "has no effect on the layers we serve in this version of SGLang"
        yield Finding("note", "SGLANG_FORCE_FUSED_OP_BACKEND", text)


def _left_by_platform(selected: str) -> list[EntryPoint]:
    """The entry points that load us after SGLang left out those of distributions with a platform that was not selected."""
    left_out = {_owner(point) for point in entry_points(group=PLATFORMS) if selected and point.name != selected}
    return [p for p in entry_points(group=PLUGINS) if p.value == LOADER and _owner(p) not in left_out]


def _platform(selected: str, loaders: list[EntryPoint]) -> Iterator[Finding]:
    platforms = entry_points(group=PLATFORMS)
    if not selected:
        if len(platforms.names) > 1:
            text = f"not set, and several platforms are installed ({_names(platforms.names)})"
            hint = f"SGLang stops when more than one wants to run; select one, for example SGLANG_PLATFORM={NAME}"
            yield Finding("note", "SGLANG_PLATFORM", text, hint)
        return
    if selected == NAME:
        yield Finding("ok", "SGLANG_PLATFORM", f"selects {NAME}")
        return
    hint = f"unset SGLANG_PLATFORM, or set SGLANG_PLATFORM={NAME}"
    if selected not in platforms.names:
        text = f"SGLang stops: no installed platform has the name {selected!r} (installed: {_names(platforms.names)})"
        yield Finding("fault", "SGLANG_PLATFORM", text, hint)
    elif loaders:
        text = f"selects {selected}, with our operators: {_names({_owner(p) for p in loaders})} loads our hooks"
        yield Finding("ok", "SGLANG_PLATFORM", text)
    else:
        text = f"{selected!r} is selected, another platform than ours: SGLang then skips all our hooks without a word"
        hint = (
            f"to keep it and have our operators, load us from a distribution without a platform: {GUIDE}; else {hint}"
        )
        yield Finding("fault", "SGLANG_PLATFORM", text, hint)


def _list(plugins: str, ours: set[str]) -> Iterator[Finding]:
    # SGLang's own reading: set and not empty; blanks leave an empty list, which lets nothing through.
    names = [word.strip() for word in plugins.split(",") if word.strip()]
    if not plugins:
        return
    if ours.isdisjoint(names):
        text = f"SGLANG_PLUGINS={plugins} leaves out {_names(ours)}: SGLang then serves without our hooks"
        add = NAME if NAME in ours else min(ours)
        yield Finding("fault", "SGLANG_PLUGINS", text, f"SGLANG_PLUGINS={','.join((*names, add))}, or unset it")
    installed = {point.name for group in (PLUGINS, PLATFORMS) for point in entry_points(group=group)}
    unknown = sorted(set(names) - installed)
    if unknown:
        text = f"no installed plug-in has the name {', '.join(unknown)}; SGLang passes over it without a word"
        yield Finding("note", "SGLANG_PLUGINS", text, f"the names are: {_names(installed)}")


def _names(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "unknown"
