# SPDX-License-Identifier: Apache-2.0
"""``fl-dispatch tune``: measure every implementation on this device and write a policy file."""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_dispatch.adapters import CORE_PREFIX, framework_layers
from fl_dispatch.cli import settings
from fl_dispatch.cli import tune_arguments as arguments
from fl_dispatch.cli.doctor import versions
from fl_dispatch.cli.text import as_json, columns
from fl_dispatch.errors import ConfigError, UnknownOperatorError, did_you_mean

if TYPE_CHECKING:
    from fl_dispatch.tune.measure import Figure

_TOKENS = {"cpu": "1,16,128,1024"}
_DEFAULT_TOKENS = "1,4,16,64,256,1024,4096"
_ROUNDS = 7


def add_parser(subparsers: Any) -> None:
    """Add this command to the command line."""
    parser = subparsers.add_parser(
        "tune",
        help="measure every implementation on this device, write the policy that follows",
        description="Measures every implementation that can be used here, in the sizes of a model, and writes a policy "
        "file that names the best one for each operator and number of tokens, with all figures, and a picture beside "
        "it. Run it on the device that is to serve, with nothing else running there.",
    )
    parser.add_argument("--output", "-o", type=Path, default=Path("fl-tuned.yaml"), metavar="FILE.yaml")
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="FILE.yaml",
        help="measure nothing: choose anew from the figures in it",
    )
    parser.add_argument("--force", action="store_true", help="overwrite the file and its picture")
    parser.add_argument("--ops", help="operators to measure, by commas (default: all)")
    parser.add_argument("--dtypes", help="by commas; the policy is for the first (default: bfloat16, on a CPU float32)")
    parser.add_argument(
        "--tokens", help=f"numbers of tokens, by commas (default: {_DEFAULT_TOKENS}, on a CPU {_TOKENS['cpu']})"
    )
    parser.add_argument(
        "--for",
        dest="purpose",
        choices=("graph", "eager"),
        help="choose by device time in a graph, or by the slower of host and device (default: graph where there are any)",
    )
    parser.add_argument(
        "--model", type=Path, metavar="FOLDER", help="take sizes from its config.json (default: 8B Llama)"
    )
    parser.add_argument("--device", help="for example cuda (default: the accelerator of this machine, else cpu)")
    parser.add_argument(
        "--without-native",
        action="store_true",
        help="do not measure the framework's own methods, so that none is chosen",
    )
    parser.add_argument("--rounds", type=int, metavar="N", help=f"times are medians of so many (default: {_ROUNDS})")
    settings.add_common_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> tuple[str, int]:
    """Carry it out; returns the text to print and the exit code."""
    try:
        return _run(args)
    except KeyboardInterrupt:
        # Measuring takes minutes, so stopping it is ordinary use; 130 is what a shell makes of Ctrl-C.
        print("fl-dispatch: interrupted; the policy is not written", file=sys.stderr)
        raise SystemExit(130) from None


def _run(args: argparse.Namespace) -> tuple[str, int]:
    choice, config = settings.read(args)
    from fl_dispatch.manager import OpManager
    from fl_dispatch.native import IMPL_ID
    from fl_dispatch.tune.chart import svg
    from fl_dispatch.tune.choose import Orders, orders
    from fl_dispatch.tune.policy_file import cannot_write, check_target, content, not_able, picture_beside, token

    check_target(args.output, args.force)
    manager = OpManager(policy=config.policy)
    tuned = _measured(args, manager, choice.prefix) if args.source is None else _read(args, manager)
    figures, dtype, purpose = tuned["figures"], tuned["dtype"], tuned["for"]
    considered = [one for one in figures if not (args.without_native and one.impl_id == IMPL_ID)]
    # Files of before it was noted: a device whose time could not be measured is taken for a CPU.
    timed = any(one.device_us is not None for one in figures)
    on_host = tuned.get("device_type", "" if timed else "cpu") == "cpu"
    found: dict[str, Orders] = {}
    tokens: dict[tuple[str, str], str] = {}
    for op_name in dict.fromkeys(figure.op_name for figure in figures):
        preference = [candidate.impl.impl_id for candidate in manager.select(op_name).candidates]
        if IMPL_ID not in preference:
            # Not named by the policy: as good as the best, it costs nothing and changes nothing.
            preference.insert(0, IMPL_ID)
        found[op_name] = orders(considered, op_name, dtype, purpose, preference, on_host=on_host)
        tokens |= {(op_name, impl.impl_id): token(impl) for impl in manager.registry.get(op_name)}
        # Of a file from elsewhere: an implementation that is not here has a token all the same.
        tokens = {(op_name, f.impl_id): f"impl:{f.impl_id}" for f in figures if f.op_name == op_name} | tokens
        tokens[op_name, IMPL_ID] = IMPL_ID
    what = "device time in a graph" if purpose == "graph" else "the slower of host and device"
    title = f"{tuned['device']}, {dtype}, {tuned['date']}: {what}"
    policy, drawn = content(found, tokens, tuned), svg(figures, dtype, purpose, title)
    picture = picture_beside(args.output)
    try:
        picture.write_text(drawn, encoding="utf-8")
        args.output.write_text(policy, encoding="utf-8")
    except OSError as error:
        raise cannot_write(args.output, error) from error
    if args.json:
        failed = not_able(figures)
        return as_json({"policy": str(args.output), "picture": str(picture), "orders": found, "not_able": failed}), 0
    rows = [
        (op_name, bound, " > ".join(order) or "nothing could be measured")
        for op_name, each in found.items()
        for bound, order in _rows(each)
    ]
    table = columns(("operator", "tokens", "order"), rows)
    prefix = tuned.get("prefix", choice.prefix)
    closing = f"written: {args.output} and {picture}\nuse it:  {prefix}CONFIG={args.output}"
    return "\n".join(
        (
            settings.headline(choice),
            "",
            table,
            "",
            *_left_out(figures),
            *_remarks([one for one in considered if one.dtype == dtype], found, purpose, on_host),
            closing,
        )
    ), 0


def _measured(args: argparse.Namespace, manager: Any, prefix: str) -> dict[str, Any]:
    """Measure; what the policy file keeps of it."""
    import torch

    from fl_dispatch.facts import device_name
    from fl_dispatch.tune import timing
    from fl_dispatch.tune.measure import measure
    from fl_dispatch.tune.workloads import MEASURED, ModelShape

    device = arguments.device(args.device) if args.device else manager.device_type
    operators = arguments.operators(args.ops, MEASURED) if args.ops else MEASURED
    dtypes = arguments.dtypes(args.dtypes or ("float32" if device == "cpu" else "bfloat16"))
    counts = arguments.tokens(args.tokens or _TOKENS.get(device, _DEFAULT_TOKENS))
    rounds = _ROUNDS if args.rounds is None else args.rounds
    if rounds < 1:
        raise ConfigError(f"--rounds: {rounds} is less than 1")
    purpose = args.purpose or ("graph" if timing.has_graphs(device) else "eager")
    if purpose == "graph" and not timing.has_graphs(device):
        raise ConfigError(f"--for graph: device time in graphs cannot be measured on {device}; use --for eager")
    shape = ModelShape.of_model(args.model) if args.model else ModelShape()
    speed = timing.bandwidth(device)
    layers = None if args.without_native else framework_layers(prefix)
    if layers is None and not args.without_native and prefix != CORE_PREFIX:
        print(f"the adapter of {prefix}* offers no layers: operators are measured by themselves", file=sys.stderr)
    figures = measure(
        manager.registry,
        operators=operators,
        dtypes=dtypes,
        tokens=counts,
        shape=shape,
        device=device,
        bandwidth=speed,
        rounds=rounds,
        progress=lambda line: print(line, file=sys.stderr, flush=True),
        layers=layers,
    )
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": shlex.join(["fl-dispatch", *_given(args)]),
        "prefix": prefix,
        "device": device_name(device),
        "device_type": torch.device(device).type,
        "for": purpose,
        "dtype": dtypes[0],
        "shape": dict(vars(shape)),
        "bandwidth_bytes_a_second": round(speed),
        "versions": {name: version for name, version in versions().items() if version is not None},
        "figures": figures,
    }


def _read(args: argparse.Namespace, manager: Any) -> dict[str, Any]:
    """What another file keeps, to choose anew for another purpose or dtype."""
    from fl_dispatch.tune.policy_reader import read

    for option in ("ops", "tokens", "model", "device", "rounds"):
        if getattr(args, option) is not None:
            raise ConfigError(f"--{option}: --from measures nothing; leave one of the two out")
    tuned = read(args.source)
    try:
        for op_name in {figure.op_name: None for figure in tuned["figures"]}:
            manager.registry.spec(op_name)
    except UnknownOperatorError as error:
        raise ConfigError(f"--from: {str(args.source)!r} has figures of another operator: {error}") from error
    tuned["for"] = args.purpose or tuned["for"]
    tuned["dtype"] = arguments.dtypes(args.dtypes)[0] if args.dtypes else tuned["dtype"]
    known = {figure.dtype for figure in tuned["figures"]}
    if tuned["dtype"] not in known:
        raise ConfigError(f"--dtypes: {args.source} has no figures of {tuned['dtype']}; {did_you_mean('', known)}")
    if tuned["for"] == "graph" and all(figure.device_us is None for figure in tuned["figures"]):
        raise ConfigError(f"--for graph: {args.source} has no device times; use --for eager")
    return tuned


def _rows(order: Any) -> list[tuple[str, list[str]]]:
    if isinstance(order, dict):
        return [("more" if bound == "more" else f"up to {bound}", each) for bound, each in order.items()]
    return [("all", order)]


def _remarks(figures: Iterable[Figure], found: Mapping[str, Any], purpose: str, on_host: bool) -> list[str]:
    """What is not to be seen in the figures of how the orders came about."""
    from fl_dispatch.native import IMPL_ID

    own = [one for one in figures if one.impl_id == IMPL_ID]
    if purpose == "graph":
        fused = dict.fromkeys(one.op_name for one in own if one.fused)
        first = [op_name for op_name in fused if any(order[:1] == [IMPL_ID] for _, order in _rows(found[op_name]))]
        why = "the compiler of these graphs fuses it with what is around it, see docs/tune.md"
        return [f"{IMPL_ID} is first for {', '.join(first)}: {why}", ""] if first else []
    if on_host or not own:
        return []
    return [f"{IMPL_ID} gives way only to what takes less than two thirds of its host time, see docs/tune.md", ""]


def _left_out(figures: Iterable[Figure]) -> list[str]:
    """A line for each implementation and reason for which it was not measured."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for one in figures:
        if one.failed is not None:
            found.setdefault((one.impl_id, one.failed), {})[one.op_name] = None
    lines = [f"not able: {impl_id} for {', '.join(ops)}: {why}" for (impl_id, why), ops in found.items()]
    return [*lines, ""] if lines else []


def _given(args: argparse.Namespace) -> list[str]:
    """The command as it was given, from what was parsed."""
    words = ["tune"]
    for option in ("ops", "dtypes", "tokens", "purpose", "model", "device", "rounds", "prefix"):
        value = getattr(args, option)
        if value is not None:
            words += [{"purpose": "--for"}.get(option, f"--{option}"), str(value)]
    return [*words, "--without-native"] if args.without_native else words
