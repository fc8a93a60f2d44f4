# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of SGLang Diffusion. What they need of it is imported when they run: older SGLang has no plug-ins there."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[3] / "examples")]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing of the caller's environment, of this machine's accelerator or of another test decides."""
    from diffusion_case import OVERRIDE, accelerator
    from sglang.multimodal_gen.runtime import platforms
    from sglang.multimodal_gen.runtime.platforms import plugins

    import sglang_fl.diffusion.backend as backend
    import sglang_fl.diffusion.worker as worker
    from fl_dispatch import OpManager
    from sglang_fl.seam import find_seam

    # Tests of the other runtime load its plug-ins into this process, which no process of diffusion does.
    seam = find_seam()
    owner = resolve_name(f"{seam.module}:{seam.owner}")
    monkeypatch.setattr(owner, seam.method, inspect.unwrap(vars(owner)[seam.method]))
    for name in (OVERRIDE, "SGLANG_PLUGINS", "SGLANG_ENABLE_DETERMINISTIC_INFERENCE"):
        monkeypatch.delenv(name, raising=False)
    accelerator(monkeypatch, None)
    monkeypatch.setattr(platforms, "_current_platform", None)
    monkeypatch.setattr(platforms, "_current_platform_selection", None)
    monkeypatch.setattr(platforms, "_backend_init_done", False)
    monkeypatch.setattr(platforms, "_backend_init_error", None)
    monkeypatch.setattr(backend, "_started", None)
    monkeypatch.setattr(worker, "_report", None)
    monkeypatch.setattr(worker, "_binder", None)
    monkeypatch.setattr(worker, "_hooked", False)
    manager = OpManager(device_type="cpu")
    for module in (backend, worker):
        monkeypatch.setattr(module, "default_manager", lambda: manager)
    plugins._reset_lifecycle_for_tests()
    monkeypatch.setattr(plugins.HookRegistry, "_hooks", type(plugins.HookRegistry._hooks)(list))
    monkeypatch.setattr(plugins.HookRegistry, "_patched", set())
    yield
    plugins._reset_lifecycle_for_tests()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``install(name, code, *lines of entry_points.txt)``: a distribution with one module."""
    from engine import distribution

    def install(name: str, code: str, *entry_points: str) -> None:
        monkeypatch.syspath_prepend(distribution(tmp_path / name, name, code, *entry_points))
        monkeypatch.delitem(sys.modules, name, raising=False)

    return install


@pytest.fixture
def ours(fresh: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Real layers on a vendor's CPU platform of ours."""
    from diffusion_case import started
    from sglang.multimodal_gen.runtime import platforms

    import sglang_fl.diffusion.backend as backend
    from fl_dispatch import DevicePlatform
    from sglang_fl.diffusion.platform import DispatchPlatform

    cpu_facts = DevicePlatform("cpu", lambda: True, "gloo", dispatch_key="CPU", native_forward="native")
    monkeypatch.setattr(platforms, "_current_platform", DispatchPlatform(cpu_facts))
    found = started({"PREFER": "reference"})
    monkeypatch.setattr(backend, "_started", found)
    return found
