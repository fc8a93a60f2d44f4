# SPDX-License-Identifier: Apache-2.0
"""``fl-dispatch bisect -- COMMAND``: which operators make a command's result bad."""

from __future__ import annotations

import argparse
import os
import shlex
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fl_dispatch import ops
from fl_dispatch.adapters import CORE_PREFIX, PrefixChoice, adapter_of, load_settings
from fl_dispatch.bisect.candidates import Candidates, candidates
from fl_dispatch.bisect.judge import all_as_ctrl_c, run_command, verdict
from fl_dispatch.bisect.logs import log_folder
from fl_dispatch.bisect.search import Outcome, Search, Verdict
from fl_dispatch.cli import bisect_text as text
from fl_dispatch.cli import settings
from fl_dispatch.cli.text import as_json, wrapped
from fl_dispatch.config import Config
from fl_dispatch.errors import ConfigError, did_you_mean
from fl_dispatch.policy import Token


def add_parser(subparsers: Any) -> None:
    """Add this command to the command line."""
    parser = subparsers.add_parser(
        "bisect",
        usage="fl-dispatch bisect [options] -- COMMAND [ARGUMENT ...]",
        help="find the operators that make a command's result bad, by halves",
        description="Runs COMMAND again and again, each time with other operators exchanged for what is known to be good, "
        "until it is clear which ones make its result bad. COMMAND says by its exit status what the result is: 0 good; "
        "125 cannot be judged; any other up to 127, or a crash, bad; other ones give the search up.",
        epilog="exit codes: 0 found; 1 nothing found, or not settled; 2 wrong usage or settings; 130 interrupted",
    )
    parser.add_argument("--ops", metavar="OP,...", help="operators to look at (default: all that are taken over)")
    parser.add_argument(
        "--good",
        default="reference",
        metavar="TOKEN",
        help="what is known to be good: reference (the default), native (the framework's own method), "
        "or another token such as vendor:NAME",
    )
    parser.add_argument(
        "--try-others",
        action="store_true",
        help="run also with each other implementation of the guilty operators, and say which are good",
    )
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="end a run that takes longer; it counts as not judged"
    )
    parser.add_argument(
        "--logs", type=Path, metavar="DIR", help="where the output of each run goes (default: a new temporary folder)"
    )
    settings.add_common_arguments(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="with its arguments, after --")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> tuple[str, int]:
    """Carry it out; returns the text to print and the exit code."""
    command = _command(args.command)
    if args.timeout is not None and not args.timeout > 0:
        raise ConfigError(f"--timeout: {args.timeout:g} is no time to wait; give seconds, for example 600")
    choice, config = settings.read(args)
    op_names, left_out = _operators(args, choice, config)
    runs = _Runs(command, choice.prefix, args.good, args.timeout, log_folder(args.logs))
    text.tell(settings.headline(choice))
    if choice.prefix != CORE_PREFIX and adapter_of(choice.prefix) is None:
        text.tell("note: its adapter is not installed here; what the command runs has to read these variables")
    text.tell(wrapped(f"looking at {', '.join(op_names)}; known to be good: {args.good}", rest="  "))
    for op_name, why in left_out.items():
        text.tell(wrapped(f"left out: {op_name}, {why}", rest="  "))
    text.tell(f"output of the runs: {runs.folder}{os.sep}")
    search = Search(op_names, runs.ask)
    outcome, stopped, code = None, "", 0
    found: dict[str, Candidates] = {}
    tried: dict[str, dict[str, Verdict]] = {}
    try:
        with all_as_ctrl_c():
            outcome = search.run()
            if outcome is Outcome.FOUND:
                _look_further(search, runs, found, tried if args.try_others else None)
    except _GivenUp as given_up:
        if outcome is None:
            if args.json:
                found_so_far = {"prefix": choice.prefix, "outcome": "given up", "why": str(given_up)}
                return as_json({**found_so_far, "runs": [asdict(one) for one in runs.done]}), 1
            return wrapped(f"given up: {given_up}. {text.known(search, args.good)}"), 1
        stopped = f"given up: {given_up}"
    except KeyboardInterrupt:
        if outcome is None:
            text.tell(f"\nfl-dispatch: interrupted. {text.known(search, args.good)}")
            raise SystemExit(130) from None
        text.tell("\nfl-dispatch: interrupted")
        stopped, code = "interrupted", 130
    avoiding = runs.avoiding(search, tried)
    result = text.Result(outcome, search, args.good, runs.variable, avoiding, found, tried, stopped)
    code = code if outcome is Outcome.FOUND else 1
    if args.json:
        return as_json({"prefix": choice.prefix, **result.as_dict(), "runs": [asdict(one) for one in runs.done]}), code
    return result.describe(runs.done, command, config, narrowed=args.ops is not None), code


class _GivenUp(Exception):
    """The command ended in a way that makes going on useless."""


@dataclass
class _Runs:
    """Runs the command under changed settings and keeps what came out."""

    command: list[str]
    prefix: str
    good: str
    timeout: float | None
    folder: Path

    def __post_init__(self) -> None:
        self.done: list[text.Run] = []
        self.variable = f"{self.prefix}PER_OP"
        self._given = os.environ.get(self.variable, "")

    def ask(self, on_good: frozenset[str]) -> Verdict:
        """The verdict with these operators on what is known to be good, everything else as set."""
        return self.judge(dict.fromkeys(sorted(on_good), self.good))

    def judge(self, orders: Mapping[str, str]) -> Verdict:
        """The verdict with these orders, everything else as set; raises _GivenUp."""
        number = len(self.done) + 1
        value = per_op(self._given, orders)
        log = self.folder / f"run-{number}.log"
        try:
            log.write_text(f"$ {self.variable}={shlex.quote(value)} {shlex.join(self.command)}\n", encoding="utf-8")
        except OSError as error:
            raise _GivenUp(f"{log} cannot be written: {error.strerror}") from error
        again = "once more " if any(one.orders == orders for one in self.done) else ""
        text.tell(f"run {number}: {again}{text.with_orders(orders)} ... ", end="")
        start = time.monotonic()
        try:
            status = run_command(self.command, {**os.environ, self.variable: value}, log, self.timeout)
        except ConfigError:
            text.tell("")
            raise
        seconds = time.monotonic() - start
        judged, why = (Verdict.UNJUDGED, f"no end within {self.timeout:g} s") if status is None else verdict(status)
        text.tell(f"{judged.value if judged else 'given up'} ({why}), {seconds:.1f} s")
        self.done.append(text.Run(number, dict(orders), judged.value if judged else None, why, seconds, str(log)))
        if judged is None:
            raise _GivenUp(f"run {number} ended with {why}, which says neither good nor bad; its output: {log}")
        return judged

    def avoiding(self, search: Search, tried: Mapping[str, Mapping[str, Verdict]]) -> str:
        """The value of the variable that avoids the fault."""
        orders = dict.fromkeys(sorted(search.exchanged), self.good)
        if len(orders) == 1:  # of several, others were only tried one at a time
            for op_name in orders:
                able = [token for token, judged in tried.get(op_name, {}).items() if judged is Verdict.GOOD]
                orders[op_name] = (able or [self.good])[0]
        return per_op(self._given, orders)


def per_op(given: str, orders: Mapping[str, str]) -> str:
    """The variable's value with these orders besides what it says about other operators."""
    kept = [item.strip() for item in given.split(";") if item.strip()]
    kept = [item for item in kept if item.partition("=")[0].strip() not in orders]
    return ";".join([*kept, *(f"{op_name}={order}" for op_name, order in orders.items())])


def _command(words: list[str]) -> list[str]:
    if words[:1] == ["--"]:
        words = words[1:]
    if not words:
        raise ConfigError("no command to judge by; give one that exits with 0 if its result is good, after --")
    return words


def _operators(
    args: argparse.Namespace, choice: PrefixChoice, config: Config
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The operators to look at, and the others with the reason; raises ConfigError."""
    known = ops.STANDARD_OPERATORS
    asked = tuple(known) if args.ops is None else tuple(dict.fromkeys(word.strip() for word in args.ops.split(",")))
    for op_name in asked:
        if op_name not in known:
            raise ConfigError(f"--ops: unknown operator {op_name!r}; {did_you_mean(op_name, known)}")
    good = _good(args.good, choice, asked[0])
    left_out = {op_name: why for op_name in asked if (why := _left_out(op_name, good, config)) is not None}
    looked_at = tuple(op_name for op_name in asked if op_name not in left_out)
    if args.ops is not None and left_out:
        op_name, why = next(iter(left_out.items()))
        raise ConfigError(f"--ops: {op_name} cannot be to blame, it is {why}")
    if not looked_at:
        reasons = "; ".join(f"{op_name} is {why}" for op_name, why in left_out.items())
        raise ConfigError(f"no operator can be to blame: {reasons}; `fl-dispatch config` shows where that is set")
    return looked_at, left_out


def _left_out(op_name: str, good: Token, config: Config) -> str | None:
    """Why exchanging the operator would change nothing; None where it may."""
    not_taken = config.takes_over(op_name)
    if not_taken is not None:
        return f"left to the framework: {not_taken}"
    policies = [policy for _, policy in config.policy.buckets(op_name)] or [config.policy]
    if all(policy.order(op_name)[0] == good for policy in policies):
        return f"on {good.text} already"
    return None


def _good(word: str, choice: PrefixChoice, op_name: str) -> Token:
    """``--good``, checked as the variable would be."""
    try:
        token = Token.parse(word)
        variable = f"{choice.prefix}PER_OP"
        value = per_op(os.environ.get(variable, ""), {op_name: token.text})
        load_settings(choice.prefix, {**os.environ, variable: value})
    except ConfigError as error:
        raise ConfigError(f"--good: {error}") from None
    if token.text == "native" and choice.prefix == CORE_PREFIX:
        raise ConfigError(
            "--good native: only the layers of a framework have a method of their own; "
            f"for a program that reads {CORE_PREFIX}* use --good reference, for a framework --prefix"
        )
    return token


def _look_further(
    search: Search, runs: _Runs, found: dict[str, Candidates], tried: dict[str, dict[str, Verdict]] | None
) -> None:
    """Fill in what is chosen for each guilty operator and, unless ``tried`` is None, the verdict on each other
    implementation, the other guilty ones on what is good. In place, so that an end in between loses nothing."""
    on_good = dict.fromkeys(sorted(search.exchanged), runs.good)
    for op_name in on_good:
        found[op_name] = candidates(op_name, runs.prefix, os.environ)
    if tried is None:
        return
    for op_name in on_good:
        verdicts = tried.setdefault(op_name, {})
        for token in found[op_name].others:
            if token.removeprefix("impl:") != runs.good.removeprefix("impl:"):
                verdicts[token] = runs.judge({**on_good, op_name: token})
