# SPDX-License-Identifier: Apache-2.0
"""What the tests of SGLang Diffusion's rules share. Imported only where that has plug-ins."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.multimodal_gen.runtime import platforms

import sglang_fl.diffusion.backend as backend
from fl_dispatch import DevicePlatform, OpManager, load_config
from sglang_fl.diffusion.forwards import Forwards

OVERRIDE = "SGLANG_DIFFUSION_PLATFORM_OVERRIDE"
Install = Callable[..., None]

VENDOR = """
from fl_dispatch import BackendImplKind, DevicePlatform, OpImpl, Vendor

def register(registry):
    registry.register(OpImpl("silu_and_mul", "vendor.{name}", BackendImplKind.VENDOR, lambda obj, x: x, vendor="{name}"))

VENDOR = Vendor("{name}", register, platform=DevicePlatform("{device}", lambda: {present!r}, "{name}_ccl"))
"""
OTHER = """
from sglang.multimodal_gen.runtime.platforms import Platform, PlatformEnum

class Other(Platform):
    _enum = PlatformEnum.OOT
    device_name = device_type = "other"

def activate():
    return "other_chip.Other"
"""


def accelerator(monkeypatch: pytest.MonkeyPatch, kind: str | None) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: kind is not None)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: SimpleNamespace(type=kind) if kind else None)


def vendor(install: Install, name: str, device: str, present: bool | str = True) -> None:
    code = VENDOR.format(name=name, device=device, present=present)
    install(name, code, "[fl_dispatch.vendors]", f"{name} = {name}:VENDOR")


def other_platform(install: Install, code: str = OTHER, *more: str) -> None:
    install("other_chip", code, "[sglang.multimodal_gen.platforms]", "other_chip = other_chip:activate", *more)


def resolved() -> Any:
    """What real SGLang resolves here."""
    return platforms._resolve_current_platform()


def layers() -> Any:
    from sglang.multimodal_gen.runtime.layers import activation, layernorm
    from sglang.multimodal_gen.runtime.layers.rotary_embedding import base

    return SimpleNamespace(**{**vars(activation), **vars(layernorm), **vars(base)})


def started(
    settings: dict[str, str] | None = None, key: str = "native", manager: OpManager | None = None
) -> backend.Started:
    layers()
    config = load_config("SGLANG_FL_", {f"SGLANG_FL_{name}": value for name, value in (settings or {}).items()})
    manager = manager or OpManager(policy=config.policy, device_type="cpu")
    forwards = Forwards(manager, config, key, backend._mode, backend._called)
    return backend.Started(config, forwards, "cpu", "the seam", forwards.register())


def facts(**given: Any) -> DevicePlatform:
    return DevicePlatform("acme_chip", lambda: True, "acme_ccl", **given)
