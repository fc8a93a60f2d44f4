# SPDX-License-Identifier: Apache-2.0
"""Where things are in this repository."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools"
PACKAGES = ROOT / "packages"
REQUIREMENTS = TOOLS / "requirements"

# Everything the tool makes is under one git-ignored folder, so that deleting it is a complete reset.
ENVS = ROOT / ".envs"
LOGS = ENVS / "logs"
REPORTS = ENVS / "reports"
MODEL = ENVS / "models" / "SmolLM2-135M-Instruct"


def relative(path: Path) -> str:
    """The path as a person in the repository root would type it; absolute if it lies elsewhere."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
