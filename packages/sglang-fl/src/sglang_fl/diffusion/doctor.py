# SPDX-License-Identifier: Apache-2.0
"""What ``fl-dispatch doctor`` says about SGLang Diffusion: whether our operators would run there, and why not.

Looks at installed metadata, variables and vendors' facts: SGLang is not imported and no device is touched.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import entry_points

from fl_dispatch import DevicePlatform, Finding, FLDispatchError
from sglang_fl import versions
from sglang_fl.diffusion.choice import ENTRY_POINT, VARIABLE, allowed, device_facts

PLATFORMS = "sglang.multimodal_gen.platforms"
PLUGINS = "sglang.multimodal_gen.plugins"
#: What a distribution without a platform names to have our operators on platforms that are not ours.
HOOKS = "sglang_fl.diffusion:register_hooks"
#: From here on SGLang Diffusion takes plug-ins.
FIRST = (0, 5, 21)
#: SGLang's own platforms that the variable can name.
OWN = ("cpu", "cuda", "rocm", "xpu", "mps", "npu", "musa")

_SUBJECT = "sglang diffusion"
_OURS = f"{VARIABLE}={ENTRY_POINT}"
_REMEDY = f"{_OURS} runs them on SGLang's own platform of this machine; docs/diffusion.md has another way"


def check() -> Iterator[Finding]:
    """The findings, for the entry-point group ``fl_dispatch.doctor``; none where there is no SGLang."""
    version = versions.installed_version()
    if version == "not installed":
        return
    if versions.release(version) < FIRST:
        yield Finding("note", _SUBJECT, f"takes no plug-ins in SGLang {version}", "from SGLang 0.5.21 on it does")
        return
    selected = os.environ.get(VARIABLE, "").strip()
    carriers = _carriers(os.environ.get("SGLANG_PLUGINS", ""))
    yield _unset(carriers) if not selected else _set(selected, carriers)
    yield from _plugins(os.environ.get("SGLANG_PLUGINS", ""), selected)


def _set(selected: str, carriers: list[str]) -> Finding:
    if selected == ENTRY_POINT:
        return Finding("ok", VARIABLE, "selects our platform: our operators run in diffusion workers")
    own = selected.lower() in OWN
    names = sorted(entry_points(group=PLATFORMS).names)
    if not own and selected not in names:
        text = f"{selected!r} is the name of no installed plug-in, so SGLang Diffusion stops (installed: {', '.join(names)})"
        return Finding("fault", VARIABLE, text, f"unset it, or set {_OURS}")
    text = f"selects {'its own platform' if own else 'the platform'} {selected!r}"
    if carriers:
        return Finding("ok", VARIABLE, f"{text}, where the hooks of {', '.join(carriers)} run our operators")
    return Finding("note", VARIABLE, f"{text}, which runs none of our operators", _REMEDY)


def _unset(carriers: list[str]) -> Finding:
    try:
        facts = device_facts()
    except FLDispatchError:  # the fault is said of the settings
        return Finding("note", _SUBJECT, "does not start with these settings either", "mend the settings first")
    names = sorted(entry_points(group=PLATFORMS).names)
    if facts is not None and _registers(facts):
        if len(names) > 1:
            hint = f"SGLang stops when more than one wants to run; select one, for example {_OURS}"
            return Finding("note", _SUBJECT, f"several platforms are installed ({', '.join(names)})", hint)
        return Finding("ok", _SUBJECT, f"takes our platform by itself, for the {facts.device_type} of a vendor")
    if carriers:
        return Finding(
            "ok", _SUBJECT, f"stays on its own platform, where the hooks of {', '.join(carriers)} run our operators"
        )
    return Finding("note", _SUBJECT, "stays on its own platform, where it runs none of our operators", _REMEDY)


def _registers(facts: DevicePlatform) -> bool:
    """Whether our platform is built from the facts, so that registered forwards bring the operators; else our hooks do."""
    return facts.device_type not in OWN or facts.device_type == "cpu"


def _carriers(plugins: str) -> list[str]:
    """Distributions that bring our hooks and offer no platform, so that SGLang does not skip them on a platform not theirs."""
    platforms = {point.dist.name for point in entry_points(group=PLATFORMS) if point.dist}
    named = [point for point in entry_points(group=PLUGINS) if point.value == HOOKS and allowed(point.name, plugins)]
    return sorted({point.dist.name for point in named if point.dist} - platforms)


def _plugins(plugins: str, selected: str) -> Iterator[Finding]:
    if allowed(ENTRY_POINT, plugins):
        return
    hint = f"SGLANG_PLUGINS={plugins},{ENTRY_POINT}, or unset it"
    try:
        facts = device_facts()
    except FLDispatchError:
        return  # said elsewhere; nothing starts
    if selected == ENTRY_POINT and (facts is None or not _registers(facts)):
        text = (
            f"SGLANG_PLUGINS={plugins} leaves out {ENTRY_POINT!r}, whose hooks bring our operators here: workers stop"
        )
        yield Finding("fault", "SGLANG_PLUGINS", text, hint)
    else:
        text = f"SGLANG_PLUGINS={plugins} leaves out {ENTRY_POINT!r}: no check of the layers in diffusion workers on our platform"
        yield Finding("note", "SGLANG_PLUGINS", text, hint)
