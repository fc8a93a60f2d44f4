# SPDX-License-Identifier: Apache-2.0
"""What replacing ATen operators by FlagGems' costs or gains here: host and device time of operators a decoder calls.

    python benchmarks/gpu/aten.py --out DIR

Writes ``aten.json`` and ``aten.md``. PyTorch's own kernels are measured first, then those that take their place in the
same process, in the sizes of an 8B model in bfloat16.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from results import headed, write

from fl_dispatch import load_config
from fl_dispatch.aten import replace_aten
from fl_dispatch.tune import timing

ROUNDS = 7
HIDDEN = 4096


def calls(tokens: int) -> dict[str, Callable[[], Any]]:
    """ATen operator to a call of it."""

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    x, y, weight, rows = normal(tokens, HIDDEN), normal(tokens, HIDDEN), normal(HIDDEN, HIDDEN), normal(32000, HIDDEN)
    index = torch.randint(0, 32000, (tokens,), device="cuda")
    return {
        "mm": lambda: x @ weight,
        "add.Tensor": lambda: x + y,
        "mul.Tensor": lambda: x * y,
        "copy_": lambda: y.copy_(x),
        "index_select": lambda: rows.index_select(0, index),
        "_softmax": lambda: torch.softmax(x, -1),
        "argmax": lambda: torch.argmax(x, -1),
        "cat": lambda: torch.cat((x, y), -1),
        "silu": lambda: torch.nn.functional.silu(x),
    }


def measure(tokens: int) -> dict[str, dict[str, float | str]]:
    """Operator to host and device microseconds, or the reason why there are none."""
    found: dict[str, dict[str, float | str]] = {}
    for name, call in calls(tokens).items():
        try:
            for _ in range(5):
                call()
            replayed = timing.Replayed([call] * 8)
            count = timing.calls_a_round(call, "cuda")
            host = [timing.host_us(call, count, "cuda") for _ in range(ROUNDS)]
            device = [replayed.device_us() for _ in range(ROUNDS)]
            found[name] = {"host_us": statistics.median(host), "device_us": statistics.median(device)}
        except Exception as error:  # noqa: BLE001  (a benchmark of what is installed: the error is its result)
            found[name] = {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}
    return found


def table(result: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [f"# ATen operators on {result['device']}, {result['date']}", "", f"`{result['command']}`", ""]
    lines += [
        f"{result['replaced']} operators replaced by FlagGems {result['flag_gems']}. Microseconds a call on the device inside of a",
        f"CUDA graph, and (in brackets) on the host; medians of {ROUNDS} rounds, bfloat16, width {HIDDEN}.",
        "",
    ]
    if result["refused"]:
        lines += ["Not registered: " + "; ".join(f"{key} ({why})" for key, why in result["refused"].items()), ""]
    lines += ["| operator | tokens | PyTorch | FlagGems |", "|---|---:|---:|---:|"]
    for tokens, both in result["times"].items():
        for name in both["PyTorch"]:
            cells = []
            for side in ("PyTorch", "FlagGems"):
                one = both[side][name]
                cells.append("failed" if "failed" in one else f"{one['device_us']:.1f} ({one['host_us']:.1f})")
            lines.append(f"| {name} | {tokens} | {' | '.join(cells)} |")
    failures = [
        f"{side}, {name}: {one['failed']}"
        for both in result["times"].values()
        for side, times in both.items()
        for name, one in times.items()
        if "failed" in one
    ]
    return "\n".join([*lines, *(["", *failures] if failures else []), ""])


def main() -> None:
    """Measure, replace, measure again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", default="1,64,2048")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    counts = [int(count) for count in arguments.tokens.split(",")]
    times: dict[str, dict[str, Any]] = {str(count): {} for count in counts}
    with torch.inference_mode():
        for count in counts:
            times[str(count)]["PyTorch"] = measure(count)
        environ = {"FL_DISPATCH_FLAGOS_ATEN": "1", "FL_DISPATCH_FLAGOS_RECORD": str(arguments.out / "aten-record.txt")}
        found = replace_aten(load_config("FL_DISPATCH_", environ))
        if found.state != "on":
            raise SystemExit(f"FlagGems cannot be used: {found.reason}")
        for count in counts:
            times[str(count)]["FlagGems"] = measure(count)
    result = headed(
        "aten.py",
        f"--out DIR --tokens {arguments.tokens}",
        device=torch.cuda.get_device_name(),
        flag_gems=found.version,
        replaced=len(found.replaced),
        refused=dict(found.refused),
        served=found.record.served() if found.record else [],
        times=times,
    )
    write(arguments.out, "aten", result, table(result))
    print(table(result))


if __name__ == "__main__":
    main()
