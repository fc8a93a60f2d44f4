# SPDX-License-Identifier: Apache-2.0
"""What all tests share: the marker ``gpu``, and which tests stay together when pytest-xdist runs several at a time."""

from __future__ import annotations

import functools

import pytest


@functools.cache
def _why_no_gpu() -> str | None:
    """None if a CUDA device can be used, otherwise the reason for a skip."""
    try:
        import torch
    except ImportError as error:
        return f"needs a CUDA device: torch cannot be imported ({error})"
    if not torch.cuda.is_available():
        return f"needs a CUDA device: torch {torch.__version__} sees none"
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests marked ``gpu`` where there is none (torch is imported only if such a test was collected), and group tests."""
    parallel = config.pluginmanager.hasplugin("xdist")
    for item in items:
        if item.get_closest_marker("gpu") is not None and (reason := _why_no_gpu()):
            item.add_marker(pytest.mark.skip(reason=reason))
        if parallel and isinstance(item, pytest.Function) and (shared := _shared(item)):
            item.add_marker(pytest.mark.xdist_group(f"{item.path} {shared}"))


def _shared(item: pytest.Function) -> str:
    """The fixtures of the item's file that outlive it, such as a running engine, with their parameters."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    definitions = item._fixtureinfo.name2fixturedefs
    names = sorted(name for name in definitions if definitions[name][-1].scope in ("module", "class"))
    return " ".join(f"{name}={parameters.get(name, '')}" for name in names)
