# SPDX-License-Identifier: Apache-2.0
"""What all tests share: the marker ``gpu``."""

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked ``gpu`` where there is none. torch is imported only if such a test was collected."""
    for item in items:
        if item.get_closest_marker("gpu") is not None and (reason := _why_no_gpu()):
            item.add_marker(pytest.mark.skip(reason=reason))
