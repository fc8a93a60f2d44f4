# SPDX-License-Identifier: Apache-2.0
"""Any name that SGLang imports, so that it can; see the package."""

from __future__ import annotations


def __getattr__(name: str) -> None:
    if name.startswith("__"):
        raise AttributeError(name)
