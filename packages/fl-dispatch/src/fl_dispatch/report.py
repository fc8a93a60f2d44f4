# SPDX-License-Identifier: Apache-2.0
"""``Report``: what runs in this process and why, as a table for people and as a JSON file that is kept up to date."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_dispatch.errors import ConfigError
from fl_dispatch.report_file import claim_file
from fl_dispatch.report_text import format_report
from fl_dispatch.types import BackendImplKind

if TYPE_CHECKING:
    from fl_dispatch.config import Config
    from fl_dispatch.manager import OpManager
    from fl_dispatch.site import Site

SCHEMA_VERSION = 1


class Report:
    """The report of one worker process.

    Args:
        manager: whose sites are reported.
        framework: name and version, for example ``"sglang 0.5.23"``.
        config: the settings in force, shown with their origins.
        rank: of this process in its group; part of the file name.
        dp_rank: of the group among several data-parallel ones, whose ranks all begin at 0; part of the name where there are.
        role: of this process, for example ``"scheduler"``.
        left: gives (operator, layer class, reason) of each layer that stays with the framework's own method.
    """

    def __init__(
        self,
        manager: OpManager,
        framework: str,
        config: Config,
        *,
        rank: int = 0,
        dp_rank: int | None = None,
        role: str = "worker",
        left: Callable[[], Iterable[tuple[str, str, str]]] = tuple,
    ) -> None:
        self._manager = manager
        self._framework = framework
        self._config = config
        self.rank = rank
        self.dp_rank = dp_rank
        self.role = role
        self._left = left
        self._facts: dict[str, Any] = {}
        self._written: str | None = None
        self._claimed: tuple[str, Path] | None = None
        self._stop: threading.Event | None = None
        self._lock = threading.Lock()

    def fact(self, key: str, value: Any) -> None:
        """Add a JSON-able fact about this process, for example the seam in use, or a function that gives the present one."""
        self._facts[key] = value

    # -- content

    def rows(self) -> list[dict[str, Any]]:
        """One row per (operator, layer class, implementation): how many layers, calls and places in graphs, why, what
        was passed over."""
        rows: dict[tuple[str, str, str], dict[str, Any]] = {}
        parts = [(part, whole.graphs) for whole in self._manager.sites() for part in whole.leaves()]
        for site, graphs in parts:
            selection, impl = site.selection, site.impl
            if selection is None or impl is None or site.obj is None:
                continue
            # An implementation may have come back into effect: its past and present calls are one row.
            calls_by = Counter(site.past_calls)
            calls_by[impl.impl_id] += site.calls
            for impl_id, calls in calls_by.items():
                row = rows.setdefault(
                    (site.op_name, site.label, impl_id),
                    {
                        "operator": site.op_name,
                        "layer_class": site.label,
                        "implementation": impl_id,
                        "why": selection.why if impl_id == impl.impl_id else "in effect until the selection changed",
                        "passed_over": [],
                        "layers": 0,
                        "calls": 0,
                        "graph_sites": 0,
                        "served_by_others": {},
                    },
                )
                row["calls"] += calls
                for (wanted, other), count in tuple(site.fallbacks.items()):
                    if wanted == impl_id:
                        row["served_by_others"][other] = row["served_by_others"].get(other, 0) + count
                if impl_id == impl.impl_id:
                    row["layers"] += 1
                    row["graph_sites"] += graphs
                    row["passed_over"] = [
                        {"implementation": c.impl.impl_id, "reason": c.reason} for c in selection.passed_over
                    ]
        return [rows[key] for key in sorted(rows, key=_in_order)]

    def left_to_framework(self) -> list[dict[str, Any]]:
        """One row per (operator, layer class, reason) of the layers that stay with the framework's own method."""
        return [
            {"operator": op, "layer_class": label, "reason": reason, "layers": count}
            for (op, label, reason), count in sorted(Counter(self._left()).items())
        ]

    def _notes(self) -> list[str]:
        """What somebody who serves models would want to change."""
        notes = []
        if self._manager.comparison is not None:
            notes.append(f"{self._config.prefix}COMPARE judges every call in eager mode against float64, which is slow")
            if self._manager.compiled or self._manager.captured:
                notes.append("calls in compiled or captured graphs are not compared; serve without graphs for that")
        return [*notes, *self._last_resorts()]

    def _last_resorts(self) -> list[str]:
        if self._manager.device_type == "cpu":
            return []
        last_resort = sorted(
            {leaf.op_name for site in self._manager.sites() for leaf in site.leaves() if _last_resort(leaf)}
        )
        if not last_resort:
            return []
        wanted = dict.fromkeys((*self._manager.policy.prefer, "native"))
        wanted.pop("reference", None)
        return [
            f"nothing but PyTorch is left for {', '.join(last_resort)}; {self._framework.split()[0]}'s own kernels may be faster: "
            f"{self._config.prefix}PREFER={','.join(wanted)} leaves such layers to them"
        ]

    def as_dict(self) -> dict[str, Any]:
        """The content of the file."""
        comparison = self._manager.comparison
        return {
            "schema_version": SCHEMA_VERSION,
            "framework": self._framework,
            "role": self.role,
            "rank": self.rank,
            "dp_rank": self.dp_rank,
            "pid": os.getpid(),
            "device": self._manager.device_type,
            "counts": "calls (eager mode)",
            **{key: value() if callable(value) else value for key, value in self._facts.items()},
            "operators": self.rows(),
            "compared": None if comparison is None else comparison.as_rows(),
            "notes": self._notes(),
            "left_to_framework": self.left_to_framework(),
            "vendors": [record.as_dict() for record in self._manager.vendors],
            "demotions": self._manager.failures.demotions(),
            "not_served": self._manager.failures.noted(),
            "config": self._config.as_dict(),
        }

    def table(self) -> str:
        """The table printed once after loading."""
        return format_report(self.as_dict())

    # -- file

    def path_for(self, path: str) -> Path:
        """The file of this process: the rank goes before the suffix, ``report.json`` to ``report.rank0.json``, or to
        ``report.dp1.rank0.json``."""
        base = Path(path).expanduser()
        if not base.name or base.is_dir():
            where = self._config.origins.get("report", "report")
            raise ConfigError(
                f"{where}: {path!r} is a folder; give the path of a file, for example {path.rstrip('/')}/report.json"
            )
        replica = "" if self.dp_rank is None else f".dp{self.dp_rank}"
        return base.with_name(f"{base.stem}{replica}.rank{self.rank}{base.suffix or '.json'}")

    def _claim(self, path: str) -> Path:
        """The file of this process, once and for all: where another live process has it, our process id goes into the name."""
        if self._claimed is None or self._claimed[0] != path:
            target = self.path_for(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            if not claim_file(target):
                target = target.with_name(f"{target.stem}.pid{os.getpid()}{target.suffix}")
            self._claimed = (path, target)
        return self._claimed[1]

    def write(self, path: str | None = None) -> Path | None:
        """Write the file now, if a path is set and something changed; a reader never sees half of it."""
        path = path or self._config.report
        if path is None:
            return None
        content = json.dumps(self.as_dict(), indent=1, default=str)
        with self._lock:
            target = self._claim(path)
            if content == self._written and target.exists():
                return target
            scratch = target.with_name(f".{target.name}.{os.getpid()}")
            scratch.write_text(content, encoding="utf-8")
            scratch.replace(target)
            self._written = content
        return target

    def keep_writing(self, every_seconds: float = 0.5) -> None:
        """Write now and then from a daemon thread: serving processes are killed, their exit handlers never run.

        Raises:
            ConfigError: the path in the settings cannot be written to.
        """
        if self._config.report is None or self._stop is not None:
            return
        try:
            self.write()
        except OSError as error:
            where = self._config.origins.get("report", "report")
            raise ConfigError(
                f"{where}: cannot write the report {self.path_for(self._config.report)}: {error.strerror}; "
                "give a path in a folder that this process may write to"
            ) from error
        self._stop = threading.Event()
        threading.Thread(
            target=self._loop, args=(self._stop, every_seconds), name="fl-dispatch-report", daemon=True
        ).start()

    def _loop(self, stop: threading.Event, every_seconds: float) -> None:
        while not stop.wait(every_seconds):
            # Layers come and go while this thread looks at them, and disks fill up: the next round may do better.
            with contextlib.suppress(RuntimeError, OSError):
                self.write()

    def stop(self) -> None:
        """Stop the thread and write once more."""
        if self._stop is not None:
            self._stop.set()
            self._stop = None
        self.write()


def _in_order(key: tuple[str, str, str]) -> tuple[str, str, str]:
    """Of one layer class's rows by tokens the ones with more tokens later."""
    operator, label, impl_id = key
    return operator, re.sub(r"\d+", lambda digits: digits[0].zfill(9), label.replace(", more tokens", ", ~")), impl_id


def _last_resort(site: Site) -> bool:
    """Whether a layer runs the reference, and not because that is what was asked for first."""
    if site.obj is None or site.selection is None or site.impl is None:
        return False
    kind = BackendImplKind.REFERENCE
    return site.impl.kind is kind and site.selection.policy.order(site.op_name)[0].kind is not kind
