# SPDX-License-Identifier: Apache-2.0
"""How the tests run the kit: in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: As its entry point loads it; also where plug-ins are not loaded of themselves.
PLUGIN = ("-p", "fl_dispatch.testing.plugin")


@dataclass(frozen=True)
class Run:
    """One run of pytest."""

    status: int
    output: str
    report: dict[str, Any] | None

    def names(self, vendor: str, status: str | None = None) -> set[str]:
        """``check-variant`` of every check of a vendor, of those with one status."""
        assert self.report is not None, self.output
        return {
            f"{check['check']}-{check['variant']}".rstrip("-")
            for check in self.report["checks"]
            if check["vendor"] == vendor and status in (None, check["status"])
        }

    def failed(self, vendor: str) -> set[str]:
        """Those that failed."""
        return self.names(vendor, "failed")


def run_pytest(
    folder: Path, *arguments: str, path: tuple[Path, ...] = (), plugin: bool = True, report: bool = True, **environ: str
) -> Run:
    """pytest in a process and folder of its own, with the kit's plug-in and distributions on the import path."""
    file = folder / "report.json"
    file.unlink(missing_ok=True)
    options = list(PLUGIN) if plugin else ["-p", f"no:{PLUGIN[1]}"]
    options += [f"--fl-report={file}"] if plugin and report else []
    search = os.pathsep.join([*map(str, path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": search, "OMP_NUM_THREADS": "1", **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=800,
        check=False,
    )
    found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    return Run(done.returncode, done.stdout, found)
