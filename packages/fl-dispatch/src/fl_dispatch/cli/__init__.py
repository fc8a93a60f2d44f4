# SPDX-License-Identifier: Apache-2.0
"""The command ``fl-dispatch``: what is installed, what would be chosen and why, what is broken, what is set."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence

import fl_dispatch
from fl_dispatch.cli.text import wrapped
from fl_dispatch.errors import FLDispatchError

#: Modules with ``add_parser(subparsers)``, in the order of the help text. Each is one command.
_COMMANDS = ("listing", "explain", "doctor", "config", "report", "tune", "bisect", "new_vendor")

#: In what torch raises when it is imported beside a backend extension of it (torch_npu, say) that does not load.
_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; errors of the user's making are one readable block and exit code 2."""
    args = _parser().parse_args(argv)
    try:
        with _own_voice():
            text, code = args.run(args)
        print(text, flush=True)
    except FLDispatchError as error:
        print(wrapped(str(error), "fl-dispatch: error: ", "  "), file=sys.stderr)
        return 2
    except RuntimeError as error:
        if _AUTOLOAD not in str(error):
            raise
        text = f"torch cannot be imported: {error} ({error.__cause__})"
        print(wrapped(text, "fl-dispatch: error: ", "  "), file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader (head, less) has seen enough; nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return int(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fl-dispatch",
        description="Shows which implementations of operators are installed, which one would be chosen and why, "
        "and what is broken.",
        epilog="exit codes: 0 good; 1 nothing may run (explain) or a fault was found (doctor); "
        "2 wrong usage or settings",
    )
    parser.add_argument("--version", action="version", version=f"fl-dispatch {fl_dispatch.__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in _COMMANDS:
        importlib.import_module(f"fl_dispatch.cli.{name}").add_parser(subparsers)
    return parser


@contextlib.contextmanager
def _own_voice() -> Iterator[None]:
    """Keep standard output to the command's own words: what vendors print while they load goes to standard error,
    and what the core would log about them is part of the output anyway."""
    logger = logging.getLogger("fl_dispatch")
    before, logger.disabled = logger.disabled, True
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        logger.disabled = before
