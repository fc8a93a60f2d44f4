# SPDX-License-Identifier: Apache-2.0
"""The commands of tools/fl.py."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from fltool.demo import run_demo
from fltool.environments import ENVIRONMENTS, ensure, named
from fltool.matrix import run_matrix
from fltool.model import ensure_model
from fltool.paths import ROOT
from fltool.process import ToolError
from fltool.suite import STEP_NAMES, run_suite


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = argparse.ArgumentParser(prog="fl.py", description="Environments, model, demo and tests of this repository.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    env = commands.add_parser("env", help="build an environment under .envs, or reuse it")
    env.add_argument("name", choices=sorted(ENVIRONMENTS), help="one of: %(choices)s", metavar="NAME")
    env.add_argument("--recreate", action="store_true", help="delete it first")
    env.add_argument("--wheels", action="store_true", help="install this repository's packages as built wheels")

    commands.add_parser("model", help="download and convert the small model that tests and demo serve")

    run = commands.add_parser("run", help="run a command in an environment: run NAME -- python -m pytest ...")
    run.add_argument("name", choices=sorted(ENVIRONMENTS), help="one of: %(choices)s", metavar="NAME")

    commands.add_parser("demo", help="serve the small model with a real engine; arguments after -- go to the demo")

    test = commands.add_parser("test", help="lint, then every environment's tests; arguments after -- go to pytest")
    test.add_argument(
        "--only", action="append", default=[], choices=STEP_NAMES, help="one step of: %(choices)s", metavar="STEP"
    )

    matrix = commands.add_parser(
        "matrix", help="the plug-ins in other versions of SGLang and vLLM; arguments after -- go to pytest"
    )
    matrix.add_argument(
        "names", nargs="*", metavar="VERSION", help="sglang-0.5.13, or sglang or vllm for all of one engine"
    )
    matrix.add_argument("--write", action="store_true", help="put the outcomes into docs/versions.md")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: the command line without the program; sys.argv when None. What follows ``--`` is passed on.

    Returns:
        the exit status: 0, 1 if something failed, 2 for a usage error, 130 when interrupted.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    passed_on: list[str] = []
    if "--" in given:
        cut = given.index("--")
        given, passed_on = given[:cut], given[cut + 1 :]
    try:
        return _dispatch(parser().parse_args(given), passed_on)
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command continues where it stopped", file=sys.stderr)
        return 130


def _dispatch(options: argparse.Namespace, passed_on: Sequence[str]) -> int:
    match options.command:
        case "env":
            env = named(options.name)
            ensure(env, recreate=options.recreate, wheels=options.wheels)
            print(f"activate it with: source {os.path.relpath(env.folder)}/bin/activate")
            return 0
        case "model":
            print(f"model: ready in {os.path.relpath(ensure_model())}")
            return 0
        case "run":
            return _run(options.name, passed_on)
        case "matrix":
            return 0 if run_matrix(options.names, write=options.write, extra=passed_on) else 1
        case "demo":
            return run_demo(passed_on)
        case _:
            return 0 if run_suite(options.only, passed_on) else 1


def _run(name: str, command: Sequence[str]) -> int:
    if not command:
        raise ToolError(f"nothing to run; write: fl.py run {name} -- COMMAND")
    env = named(name)
    ensure(env)
    variables = env.variables({"OMP_NUM_THREADS": "1"}, keep_settings=True)
    os.chdir(ROOT)
    sys.stdout.flush()
    # Takes this process's place, so that the command has the terminal and its own exit status.
    try:
        os.execvpe(command[0], list(command), variables)
    except FileNotFoundError:
        raise ToolError(f"there is no command {command[0]!r} in the environment {name}") from None
