# SPDX-License-Identifier: Apache-2.0
"""What a dispatched call costs more than a direct Python call of the same trivial function with the same arguments.

    python benchmarks/dispatch_overhead.py [--json] [--rounds N] [--without-import]

Every figure is taken in one run, interleaved: each round times every way for a millisecond or two. A figure is the
fastest of all rounds, relative to the fastest direct call: what other processes on the machine do only ever adds time,
and in short slices each way meets quiet moments. The median of the rounds is shown beside it; far above means that the
machine was busy.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import torch

from fl_dispatch import BackendImplKind, OpImpl, OpManager, OpRegistry, OpSpec, SelectionPolicy, Site
from fl_dispatch.ops import typed
from sglang_fl.bridges import BRIDGES

OP = "rms_norm"
CALLS = 10_000
#: At most so many times the direct call, and so many milliseconds to import.
TARGETS = {
    "bound bridge": 2.5,
    "typed function": 2.5,
    "held resolve_op": 2.5,
    "call_op": 9.0,
}
IMPORT_TARGET_MS = 60.0
IMPORT_PAIRS = 15
HEAVY = ("torch", "triton", "sglang", "vllm", "numpy")


def trivial(obj: Any, x: Any, residual: Any = None) -> Any:
    """The implementation that every way ends in."""
    return x


class Layer:
    """A layer without anything in it."""


def bridge(site: Site, layer: Any) -> Callable[..., Any]:
    """What sglang-fl puts in place of a RMSNorm layer's method: argument translation and guard in one function."""
    make = BRIDGES["sglang.srt.layers.layernorm.RMSNorm"].make
    return MethodType(make(layer, site, trivial), layer)


def build(crowded: bool, by_tokens: Any = None, **declared: Any) -> OpManager:
    """A manager with one implementation (two, with orders by tokens); crowded: 200 operators, 50 vendors and 10 per-op
    rules besides."""
    registry = OpRegistry()
    per_op = {}

    def add(op_name: str, vendor: str, priority: int, **more: Any) -> None:
        impl_id = f"vendor.{vendor}"
        registry.register(
            OpImpl(op_name, impl_id, BackendImplKind.VENDOR, trivial, vendor=vendor, priority=priority, **more)
        )

    add(OP, "fast", 200, **declared)
    if by_tokens is not None:
        add(OP, "slow", 1)
    if crowded:
        for number in range(200):
            registry.define(OpSpec(f"operator_{number}", trivial))
        for vendor in range(50):
            add(OP, f"other_{vendor}", vendor)
            for number in range(vendor % 4, 200, 4):
                add(f"operator_{number}", f"other_{vendor}", vendor)
        per_op = {f"operator_{number}": ("vendor:other_3", "reference") for number in range(10)}
    return OpManager(
        registry, SelectionPolicy(prefer="vendor", per_op=per_op, by_tokens=by_tokens or {}), device_type="cpu"
    )


Ways = dict[str, tuple[Callable[..., Any], str]]


def ways(crowded: bool) -> Ways:
    """Name to (callable, the arguments it is called with)."""
    layer = LAYER
    plain = build(crowded)
    site = plain.bind(OP, layer)
    KEEP.append(site)
    shared = plain.shared_site(OP)
    # The typed function itself, over this manager's site instead of the process's.
    original = typed.rms_norm
    typed_function = FunctionType(
        original.__code__, {**original.__globals__, "_rms_norm": shared}, original.__name__, original.__defaults__
    )

    found: Ways = {
        "bound bridge": (bridge(site, layer), "x, r"),
        "typed function": (typed_function, "layer, x, r"),
        "held resolve_op": (plain.resolve_op(OP), "layer, x, r"),
        "call_op": (plain.call_op, "OP, layer, x, r"),
    }
    by_dtype = build(crowded, dtypes={"float32"})
    by_shape = build(crowded, supports=lambda obj, x, residual=None: x.shape[-1] == 8)
    by_both = build(crowded, dtypes={"float32"}, supports=lambda obj, x, residual=None: x.shape[-1] == 8)
    for name, manager in (("dtype", by_dtype), ("shape", by_shape), ("dtype and shape", by_both)):
        found[f"held resolve_op, {name} predicate"] = (manager.resolve_op(OP), "layer, x, r")
    known = by_dtype.bind(OP, layer, device_type="cpu", dtype="float32")
    by_tokens = build(crowded, by_tokens={OP: {1: "vendor:slow", "more": "vendor:fast"}})
    sized = by_tokens.bind(OP, layer)
    counting = build(crowded)
    counting.watch(calls=True)
    counted = counting.bind(OP, layer)
    KEEP.extend((known, counted, sized))
    found["bound bridge, by tokens"] = (bridge(sized, layer), "x, r")
    found["bound bridge, calls counted for a report"] = (bridge(counted, layer), "x, r")
    found["bound bridge, dtype settled when bound"] = (bridge(known, layer), "x, r")
    return found


LAYER = Layer()
KEEP: list[Any] = []


def measure(rounds: int) -> dict[str, Any]:
    """Times in nanoseconds and relative to the direct call."""
    x = torch.ones(2, 8)
    everything: Ways = {"direct call": (trivial, "layer, x, r")}
    for crowded in (False, True):
        for name, way in ways(crowded).items():
            everything[f"{name} | crowded" if crowded else name] = way
    timers = {
        name: timeit.Timer(f"f({arguments})", globals={"f": f, "layer": LAYER, "x": x, "r": None, "OP": OP})
        for name, (f, arguments) in everything.items()
    }
    for timer in timers.values():
        timer.timeit(2000)  # the interpreter specialises, the first calls decide
    times: dict[str, list[float]] = {name: [] for name in timers}
    for _ in range(rounds):
        for name, timer in timers.items():
            times[name].append(timer.timeit(CALLS) / CALLS * 1e9)
    direct = min(times["direct call"])
    return {
        name: {"ns": min(values), "times": min(values) / direct, "median_ns": statistics.median(values)}
        for name, values in times.items()
    }


def import_time() -> dict[str, Any]:
    """Milliseconds that importing adds to an empty interpreter: the median of pairs, once caches are warm."""
    import fl_dispatch

    environ = {**os.environ, "PYTHONPATH": str(Path(fl_dispatch.__file__).parents[1])}

    def run(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], env=environ, check=True)
        return (time.perf_counter() - start) * 1e3

    result = {}
    for name, code in (
        ("import fl_dispatch", "import fl_dispatch"),
        ("from fl_dispatch import call_op", "from fl_dispatch import call_op"),
    ):
        run(code)
        result[name] = statistics.median(run(code) - run("pass") for _ in range(IMPORT_PAIRS))
    loaded = f"import sys, fl_dispatch; print(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    heavy = subprocess.run([sys.executable, "-c", loaded], env=environ, check=True, capture_output=True, text=True)
    return {"ms": result, "heavy_modules": heavy.stdout.split()}


def table(calls: dict[str, Any], imports: dict[str, Any] | None) -> str:
    """For people."""
    lines = [f"{'call':<42}{'ns':>8}{'median':>8}{'times':>8}{'crowded':>9}{'target':>8}"]
    for name, row in calls.items():
        if name.endswith("| crowded"):
            continue
        crowded = calls.get(f"{name} | crowded")
        beside = f"{crowded['times']:>9.2f}" if crowded else f"{'':>9}"
        target = TARGETS.get(name)
        verdict = "" if target is None else f"{target:>8.1f}" + ("  met" if row["times"] <= target else "  MISSED")
        lines.append(f"{name:<42}{row['ns']:>8.0f}{row['median_ns']:>8.0f}{row['times']:>8.2f}{beside}{verdict}")
    lines.append("crowded: 200 operators, 50 vendors and 10 per-op rules registered besides")
    if imports is not None:
        lines.append("")
        for name, spent in imports["ms"].items():
            verdict = f"target {IMPORT_TARGET_MS:.0f}" if name == "import fl_dispatch" else ""
            lines.append(f"{name:<42}{spent:>8.1f} ms more than an empty interpreter  {verdict}".rstrip())
        lines.append(f"of {', '.join(HEAVY)} it imports: {', '.join(imports['heavy_modules']) or 'none'}")
    return "\n".join(lines)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--rounds", type=int, default=150, help="rounds over all ways (default 150)")
    parser.add_argument("--without-import", action="store_true", help="leave out the import time")
    arguments = parser.parse_args()
    calls = measure(arguments.rounds)
    imports = None if arguments.without_import else import_time()
    figures = json.dumps({"calls": calls, "import": imports}, indent=1)
    print(figures if arguments.json else table(calls, imports))


if __name__ == "__main__":
    main()
