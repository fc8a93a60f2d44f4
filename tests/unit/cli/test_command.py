# SPDX-License-Identifier: Apache-2.0
"""The command as a whole: usage, errors, what it imports, where it writes."""

from __future__ import annotations

import pytest

import fl_dispatch
from fl_dispatch.cli import main

_HEAVY = ("torch", "triton", "flag_gems", "numpy", "sglang", "vllm")


@pytest.mark.parametrize(
    "words", [["--help"], *([name, "--help"] for name in ("list", "explain", "doctor", "config", "bisect"))]
)
def test_help_explains_every_argument(words, capsys) -> None:
    with pytest.raises(SystemExit) as done:
        main(words)
    assert done.value.code == 0
    out = capsys.readouterr().out
    assert "usage: fl-dispatch" in out
    if words[0] != "--help":
        assert "--json" in out
        assert "--prefix" in out


def test_version(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"fl-dispatch {fl_dispatch.__version__}\n"


@pytest.mark.parametrize("words", [[], ["lst"], ["explain"], ["list", "--jsn"]])
def test_wrong_usage_is_exit_code_2(words, capsys) -> None:
    with pytest.raises(SystemExit) as done:
        main(words)
    assert done.value.code == 2
    assert "usage: fl-dispatch" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["config"], ["config", "--reference"], ["list", "--help"]])
def test_no_framework_is_imported_where_none_is_needed(words, spawn) -> None:
    code = (
        "import sys\n"
        "from fl_dispatch.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        f"print([name for name in {_HEAVY} if name in sys.modules], file=sys.stderr)"
    )
    done = spawn(*words, code=code)
    assert (done.code, done.err.strip()) == (0, "[]")


def test_a_wrong_setting_is_one_readable_block_without_a_traceback(spawn) -> None:
    done = spawn("list", "--prefix", "FL_DISPATCH_", env={"FL_DISPATCH_PREFERR": "vendor"})
    assert done.code == 2
    assert done.out == ""
    expected = "unknown environment variable FL_DISPATCH_PREFERR; did you mean 'FL_DISPATCH_PREFER'?"
    assert " ".join(done.err.split()) == f"fl-dispatch: error: {expected}"


def test_an_unknown_prefix_is_refused_with_the_closest_one(run) -> None:
    done = run("config", "--prefix", "SGLANG_FL")
    assert (done.code, done.out) == (2, "")
    assert done.err == "fl-dispatch: error: unknown prefix 'SGLANG_FL'; did you mean 'SGLANG_FL_'?\n"


def test_a_reader_that_stops_early_is_no_error(spawn) -> None:
    code = (
        "import os, sys\n"
        "read, write = os.pipe()\n"
        "os.dup2(write, 1); os.close(write); os.close(read)\n"
        "from fl_dispatch.cli import main\n"
        "sys.exit(main(['config']))"
    )
    assert spawn(code=code).err == ""


@pytest.mark.parametrize("words", [("list",), ("explain", "rms_norm"), ("doctor",), ("config",)])
def test_text_fits_in_100_columns(words, run, install_vendor) -> None:
    install_vendor("wordy", f"raise ImportError({'why it does not work here ' * 12!r})")
    assert max(map(len, run(*words).out.splitlines())) <= 100
