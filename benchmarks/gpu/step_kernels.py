# SPDX-License-Identifier: Apache-2.0
"""What a step of decoding is made of: the device's kernels in SGLang or vLLM, without and with the dispatcher.

    python benchmarks/gpu/step_kernels.py --site DIR --own DIR --out DIR [--framework vllm] [--eager] [--requests 1,64]

The engines of a group of ``serve.py`` are alive at once and take turns, first by the clock alone, then under the framework's own
profiler. Writes ``kernels.json`` and ``.md`` (``kernels-eager``, ``vllm-kernels`` and so on). The exit status is 1 where an
engine is missing, or a tuned one runs what its policy does not say. (Not ``kernels.py``: engines see this folder, and
transformers would take it for Hugging Face's package.)
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engines import SETTLE_SECONDS, Engine, EngineError, exit_on_terminate, stop_all
from figures import Job, Rates, short_name
from groups import group_of, listed, note_layers, place, start_group
from kernel_table import page
from results import device, headed, versions, write
from steps import PROMPT
from traces import CATEGORIES, Trace, TraceError, read, step
from turns import measure

#: Tokens of the shorter job. The second is the first that decoding makes: how it begins and ends is then the same in both.
FEW = 2
#: Options that a result names.
SHOWN = ("engines", "requests", "steps", "repeats", "rounds", "seconds")
#: Engine to number of requests to the traces of every repetition, without and with steps.
Traces = dict[str, dict[int, list[tuple[Trace, Trace]]]]


def decoding(counts: Sequence[int], steps: int) -> dict[str, Job]:
    """The jobs whose difference is so many steps of decoding, for each number of requests."""
    return {f"{count}, {new}": Job(count, PROMPT, new, "new") for count in counts for new in (FEW, FEW + steps)}


def clock(rates: Rates, jobs: Mapping[str, Job], steps: int) -> dict[str, dict[str, list[float]]]:
    """Number of requests to engine to microseconds of a step in every round, without the profiler."""

    def times(name: str, engine: str) -> list[float]:
        return [jobs[name].tokens / rate for rate in rates[name][engine]]

    names = list(jobs)
    return {
        str(jobs[one].requests): {
            short_name(engine): [
                (after - before) / steps * 1e6
                for before, after in zip(times(one, engine), times(more, engine), strict=True)
            ]
            for engine in rates[one]
        }
        for one, more in zip(names[::2], names[1::2], strict=True)
    }


def trace_of(engine: Engine, job: Job, folder: Path, categories: Sequence[str]) -> Trace:
    """Let one engine serve a job under its profiler.

    Raises:
        EngineError: it died.
        TraceError: it wrote none, or one without an event that counts.
    """
    engine.resume()
    time.sleep(SETTLE_SECONDS)
    engine.ask({**job.message(), "trace": True})
    engine.seconds()
    engine.pause()
    written = list(folder.iterdir())
    try:
        found = [path for path in written if path.name.endswith((".json", ".json.gz"))]
        if len(found) != 1:
            raise TraceError(f"{len(found)} traces instead of one of {job.requests} requests, {job.new} tokens")
        return read(found[0], categories)
    finally:
        for path in written:
            path.unlink()


def trace_all(
    engines: list[Engine],
    counts: Sequence[int],
    arguments: Any,
    folder: Path,
    failed: dict[str, str],
    after_round: Callable[[Traces], None],
) -> None:
    """Every repetition of all jobs.

    Args:
        engines: one that dies or writes no trace is taken out of the list and noted in ``failed``.
        counts: of requests.
        arguments: ``steps``, ``repeats`` and ``activity``.
        folder: where the engines write their traces.
        failed: engine to reason.
        after_round: called with the traces so far, at least once.
    """
    for engine in engines:
        engine.pause()
    traces: Traces = {engine.name: {count: [] for count in counts} for engine in engines}
    jobs = list(decoding(counts, arguments.steps).values())
    for number in range(arguments.repeats):
        for engine in list(engines if number % 2 == 0 else engines[::-1]):
            try:
                for one, more in zip(jobs[::2], jobs[1::2], strict=True):
                    before, after = (
                        trace_of(engine, job, folder, CATEGORIES[arguments.activity]) for job in (one, more)
                    )
                    traces[engine.name][one.requests].append((before, after))
            except (EngineError, TraceError) as error:
                print(error, flush=True)
                failed[engine.name] = error.reason if isinstance(error, EngineError) else str(error)
                engines.remove(engine)
                del traces[engine.name]
                engine.stop()
        after_round(traces)


def run(arguments: Any) -> bool:
    """Start, measure and write; True if nothing is missing or wrong."""
    group = group_of(arguments.framework, arguments.eager, listed(arguments.engines))
    counts = list(map(int, arguments.requests.split(",")))
    name = ("" if arguments.framework == "sglang" else "vllm-") + "kernels" + ("-eager" if arguments.eager else "")
    jobs = decoding(counts, arguments.steps)
    version = versions(arguments.own, arguments.site)
    mode = "eager" if arguments.eager else "graphs"
    options = ["--framework", arguments.framework, *(["--eager"] if arguments.eager else [])]
    options += [word for key in SHOWN for word in (f"--{key}", str(vars(arguments)[key]))]
    result = headed(
        "step_kernels.py",
        shlex.join(options),
        title=f"{group.title} {version.get(group.framework)}, the kernels of a step of decoding, {mode}",
        setting=f"The model of engine.py on {device()}, prompts of {PROMPT} tokens; engines alive at once, measured in turns.",
        versions=version,
        tokens=[FEW, FEW + arguments.steps],
        repeats=arguments.repeats,
        categories=CATEGORIES[arguments.activity],
        clock_us={},
        requests={},
        choices={},
        failed={},
        problems=[],
    )

    def note(traces: Traces) -> None:
        found = {
            count: {
                short_name(engine): step(pairs[count], arguments.steps)
                for engine, pairs in traces.items()
                if pairs[count]
            }
            for count in counts
        }
        # A step that is ended early leaves what it has: the repetitions that were made.
        result["repeats"] = max((len(pairs) for by_count in traces.values() for pairs in by_count.values()), default=0)
        result["requests"] = {
            str(count): {engine: dataclasses.asdict(one) for engine, one in by_engine.items()}
            for count, by_engine in found.items()
        }
        write(arguments.out, name, result, page(result, found))

    folder = Path(tempfile.mkdtemp(prefix="traces-"))
    traced = copy.copy(arguments)
    traced.engine_options = [*json.loads(arguments.engine_options), "--traces", str(folder)]
    traced.engine_options += ["--activity", arguments.activity]
    engines, files = start_group(group, name, traced, result["failed"])
    started = list(engines)
    try:
        note_layers(result, group, engines, files)
        rates = measure(
            engines,
            arguments.rounds,
            jobs,
            arguments.seconds,
            failed=result["failed"],
            warmed_up=functools.partial(place, result),
        )
        result["clock_us"] = clock(rates, jobs, arguments.steps)
        trace_all(engines, counts, arguments, folder, result["failed"], note)
    finally:
        stop_all(started)
    print((arguments.out / f"{name}.md").read_text(encoding="utf-8"), flush=True)
    return not result["failed"] and not result["problems"]


def main(argv: Sequence[str] | None = None) -> int:
    """One group."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for folder in ("site", "own", "out"):
        parser.add_argument(f"--{folder}", type=Path, required=True)
    parser.add_argument("--framework", choices=("sglang", "vllm"), default="sglang")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--engines", default="native,native again,tuned,vendor,flagos")
    parser.add_argument("--requests", default="1,64")
    parser.add_argument("--steps", type=int, default=64, help="whose share is taken")
    parser.add_argument("--repeats", type=int, default=3, help="of each trace")
    parser.add_argument("--rounds", type=int, default=9, help="by the clock")
    parser.add_argument("--seconds", type=float, default=60.0, help="by the clock; the round that passes is the last")
    parser.add_argument("--activity", choices=tuple(CATEGORIES), default="GPU", help="what is traced")
    parser.add_argument("--engine-options", default="[]", help="JSON list of further arguments of the engine script")
    arguments = parser.parse_args(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    exit_on_terminate()
    return 0 if run(arguments) else 1


if __name__ == "__main__":
    sys.exit(main())
