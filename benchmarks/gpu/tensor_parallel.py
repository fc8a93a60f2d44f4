# SPDX-License-Identifier: Apache-2.0
"""SGLang on two GPUs, tensor parallel through NCCL, without and with the dispatcher in every rank.

    python benchmarks/gpu/tensor_parallel.py --site DIR --own DIR --out DIR [--rounds 6] [--ranks 2] [--seconds 90]

The folders are those of ``serve.py``. Writes ``tp.json`` and ``tp.md``: the rates, native's own spread, and of each rank what
it ran, from its report; both after every round. The exit status is 1 when an engine is missing, or a rank wrote no report or has an
operator without a call.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from engines import SETTLE_SECONDS, Engine, all_ready, exit_on_terminate, framework_variables, stop_all
from figures import Rates, table
from policies import policy_file
from results import device, headed, versions, write
from turns import measure

from fl_dispatch import wait_for_report

#: NVLink multicast off, in NCCL, PyTorch and NVSHMEM: on a host whose GPUs others use too it can do harm.
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
NATIVE, TUNED, DISPATCHED = "native, tp", "tuned, tp", "dispatched, tp"
#: Engines that start together never see both GPUs equally free.
START_TOGETHER = {"SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0"}
OPERATORS = {"rms_norm", "rotary_embedding", "silu_and_mul"}


class RankedEngine(Engine):
    """An engine of several ranks."""

    def pause(self) -> None:
        """Not at once: a collective that one rank has launched and the other has not would keep the first one's GPU busy."""
        time.sleep(SETTLE_SECONDS)
        super().pause()


def ranks(base: Path, count: int) -> dict[str, list[dict[str, Any]]]:
    """What each rank's report says it ran: rows of operator, class, layers, calls, implementation; none without a report."""
    keep = ("operator", "layer_class", "layers", "calls", "implementation")
    found: dict[str, list[dict[str, Any]]] = {}
    for rank in range(count):
        name = f"rank {rank}"
        try:
            path = base.with_name(f"{base.stem}.rank{rank}{base.suffix}")
            report = wait_for_report(path, dict.fromkeys(OPERATORS, 1))
        except TimeoutError as error:
            print(f"{name}: {error}", flush=True)
            found[name] = []
            continue
        found[f"{name}, process {report['pid']}"] = [
            {key: row[key] for key in keep} for row in report["operators"] if row["calls"] and report["rank"] == rank
        ]
    return found


def spread(rates: Rates) -> dict[str, float]:
    """Standard deviation of native's rates over the rounds, as a part of their mean, by job; only where there are two or more."""
    native = {job: by_engine.get(NATIVE, []) for job, by_engine in rates.items()}
    return {
        job: statistics.stdev(values) / statistics.mean(values) for job, values in native.items() if len(values) > 1
    }


def page(result: dict[str, Any]) -> str:
    """The table of ``serve.py`` with native's spread and the ranks' reports."""
    lines = [f"- {job}: {part:.1%}" for job, part in result["spread"].items()]
    lines = [table(result), "Native's own spread, standard deviation over the rounds:", "", *lines, ""]
    for rank, rows in result["ranks"].items():
        lines += [
            f"Dispatched, {rank} (a replayed CUDA graph makes no calls):",
            "",
            "| operator | layer class | layers | calls |",
        ]
        lines[-1] += " implementation |"
        lines += ["|---|---|---:|---:|---|", *(f"| {' | '.join(map(str, row.values()))} |" for row in rows), ""]
    return "\n".join(lines)


def main() -> int:
    """Start the engines, measure in turns, collect the reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for folder in ("site", "own", "out"):
        parser.add_argument(f"--{folder}", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=90.0, help="of measuring; the round that passes is the last")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    report = (arguments.out / "tp-report.json").resolve()
    for old in arguments.out.glob("tp-report.*"):
        old.unlink()
    settings = {
        NATIVE: None,
        TUNED: {"SGLANG_FL_CONFIG": str(policy_file("fl-tuned.yaml", arguments.out))},
        DISPATCHED: {"SGLANG_FL_PREFER": "vendor", "SGLANG_FL_REPORT": str(report)},
    }
    found = versions(arguments.own, arguments.site)
    result = headed(
        "tensor_parallel.py",
        f"--rounds {arguments.rounds} --ranks {arguments.ranks}",
        title="SGLang end to end, tensor parallel",
        setting=f"SGLang {found.get('sglang')}, Llama of 8B shape with random weights in bfloat16, triton attention, CUDA "
        f"graphs, tensor parallel over {arguments.ranks} x {device()} through NCCL; the dispatched engine also counts and writes "
        "reports.",
        versions=found,
        groups={},
        choices={},
        failed={},
        spread={},
        ranks={},
    )

    def note(rates: Rates) -> None:
        result["groups"], result["spread"] = {"tensor parallel": rates}, spread(rates)
        write(arguments.out, "tp", result, page(result))

    exit_on_terminate()
    engines: list[Engine] = []
    try:
        for name, own in settings.items():
            variables = {**NO_MULTICAST, **START_TOGETHER, **framework_variables("sglang"), **(own or {})}
            options = ("--tp", str(arguments.ranks))
            engines.append(RankedEngine(name, own is not None, False, variables, arguments, *options, wait=False))
        up = all_ready(engines, result["failed"])
        rates = measure(up, arguments.rounds, seconds=arguments.seconds, after_round=note, failed=result["failed"])
        if DISPATCHED not in result["failed"]:
            result["ranks"] = ranks(report, arguments.ranks)
        note(rates)
    finally:
        stop_all(engines)
    print(page(result))
    missing = [rank for rank, rows in result["ranks"].items() if {row["operator"] for row in rows} != OPERATORS]
    print(f"without all operators: {', '.join(missing)}" if missing else "every rank that is up ran every operator")
    return 1 if missing or result["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
