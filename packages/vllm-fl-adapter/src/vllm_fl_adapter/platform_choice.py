# SPDX-License-Identifier: Apache-2.0
"""Which platform of ours vLLM gets, if any. Safe to ask in the launcher: no device is initialised."""

from __future__ import annotations


def vendor_platform() -> str | None:
    """None."""
    return None


def cpu_platform() -> str | None:
    """None."""
    return None
