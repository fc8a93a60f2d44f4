# SPDX-License-Identifier: Apache-2.0
"""What ``fl-dispatch doctor`` says about SGLang Diffusion: whether our operators would run there, and why not.

Looks at installed metadata, variables and vendors' facts: SGLang is not imported and no device is touched.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points

from fl_dispatch import Finding, FLDispatchError
from sglang_fl import versions
from sglang_fl.diffusion.choice import ENTRY_POINT, VARIABLE, device_facts

PLATFORMS = "sglang.multimodal_gen.platforms"
#: From here on SGLang Diffusion takes plug-ins.
FIRST = (0, 5, 21)
#: SGLang's own platforms that the variable can name.
OWN = ("cpu", "cuda", "rocm", "xpu", "mps", "npu", "musa")

_SUBJECT = "sglang diffusion"


def check() -> Iterator[Finding]:
    """The findings, for the entry-point group ``fl_dispatch.doctor``; none where there is no SGLang."""
    version = versions.installed_version()
    if version == "not installed":
        return
    if versions.release(version) < FIRST:
        yield Finding("note", _SUBJECT, f"takes no plug-ins in SGLang {version}", "from SGLang 0.5.21 on it does")
        return
    yield from _selection(os.environ)
    yield from _plugins(os.environ)


def _selection(environ: Mapping[str, str]) -> Iterator[Finding]:
    selected = environ.get(VARIABLE, "").strip()
    names = sorted(point.name for point in entry_points(group=PLATFORMS))
    ours = f"{VARIABLE}={ENTRY_POINT}"
    if selected == ENTRY_POINT:
        yield Finding("ok", VARIABLE, "selects our platform: our operators run in diffusion workers")
    elif selected.lower() in OWN:
        text = f"selects SGLang's own platform {selected!r}, which runs none of our operators"
        yield Finding("note", VARIABLE, text, f"{ours} runs them on SGLang's own platform of this machine")
    elif selected:
        text = f"{selected!r} is another platform than ours: SGLang Diffusion then runs none of our operators"
        if selected not in names:
            text += f", and stops, because no installed plug-in has this name (installed: {', '.join(names)})"
        yield Finding("fault", VARIABLE, text, f"unset it, or set {ours}")
    else:
        yield _unset(names, ours)


def _unset(names: list[str], ours: str) -> Finding:
    try:
        facts = device_facts()
    except FLDispatchError as error:
        return Finding("fault", _SUBJECT, f"does not start with these settings: {error}", "correct the setting")
    if facts is None or (facts.device_type in OWN and facts.device_type != "cpu"):
        text = "stays on SGLang's own platform, where it asks for none of our operators"
        return Finding("note", _SUBJECT, text, f"{ours} runs them there")
    if len(names) > 1:
        hint = f"SGLang stops when more than one wants to run; select one, for example {ours}"
        return Finding("note", _SUBJECT, f"several platforms are installed ({', '.join(names)})", hint)
    return Finding("ok", _SUBJECT, f"takes our platform by itself, for the {facts.device_type} of a vendor")


def _plugins(environ: Mapping[str, str]) -> Iterator[Finding]:
    plugins = environ.get("SGLANG_PLUGINS", "")
    if plugins and ENTRY_POINT not in [word.strip() for word in plugins.split(",")]:
        text = f"SGLANG_PLUGINS={plugins} leaves out {ENTRY_POINT!r}: no check of the layers in diffusion workers"
        yield Finding("note", "SGLANG_PLUGINS", text, f"SGLANG_PLUGINS={plugins},{ENTRY_POINT}, or unset it")
