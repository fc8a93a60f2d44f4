# SPDX-License-Identifier: Apache-2.0
"""Which replaced operators served a call: noted in a file for each process, and in the report."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import torch

from fl_dispatch import ConfigError, OpManager, Report
from fl_dispatch.aten import replace_aten
from fl_dispatch.aten_record import AtenRecord


def test_first_calls_are_written_once_each(gems, settings, tmp_path):
    found = replace_aten(settings(FLAGOS_ATEN="1", FLAGOS_RECORD=str(tmp_path / "aten.txt")), rank=2)
    for _ in range(2):
        torch.ones(3).neg()
        torch.ones(3).relu()
    (path,) = tmp_path.iterdir()
    assert path.name == f"aten.rank2.pid{os.getpid()}.txt"
    assert path.read_text() == "neg\tflag_gems.ops.neg\nrelu\tflag_gems.ops.relu\n"
    assert found.record.served() == ["neg", "relu"]


def test_calls_out_of_flag_gems_itself_are_no_operators_of_the_model(gems, settings, tmp_path):
    found = replace_aten(settings(FLAGOS_ATEN="1", FLAGOS_RECORD=str(tmp_path / "aten.txt")))
    gems()
    import flag_gems

    flag_gems.fused(torch.ones(3))  # calls neg
    torch.ones(3).square()  # calls mul
    assert gems().calls == {"neg": 1, "square": 1, "mul": 1}
    assert found.record.served() == ["square"]
    torch.ones(3) * torch.ones(3)
    assert found.record.served() == ["mul.Tensor", "square"]


def test_the_next_process_with_the_same_id_keeps_the_file_of_the_first(tmp_path):
    for key in ("neg", "mm"):
        AtenRecord(str(tmp_path / "aten.txt")).note(key, "function")
    texts = {path.name: path.read_text() for path in tmp_path.iterdir()}
    stem = f"aten.rank0.pid{os.getpid()}"
    assert texts == {f"{stem}.txt": "neg\tfunction\n", f"{stem}-2.txt": "mm\tfunction\n"}


def test_a_killed_process_leaves_what_it_had(tmp_path):
    code = (
        "import os; from fl_dispatch.aten_record import AtenRecord; "
        f"AtenRecord({str(tmp_path / 'aten.txt')!r}).note('neg', 'function'); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    (path,) = tmp_path.iterdir()
    assert path.read_text() == "neg\tfunction\n"


def test_a_record_that_cannot_be_written_is_an_error_before_anything_is_registered(gems, settings, tmp_path):
    (tmp_path / "file").write_text("")
    config = settings(FLAGOS_ATEN="1", FLAGOS_RECORD=str(tmp_path / "file" / "aten.txt"))
    with pytest.raises(ConfigError, match=r"SGLANG_FL_FLAGOS_RECORD: cannot write the record .*; give the path of a"):
        replace_aten(config)
    torch.ones(3).neg()
    assert gems().calls["neg"] == 0


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (".", "Is a directory"),
        ("..", "Is a directory"),
        ("/", "Is a directory"),
        ("folder", "Is a directory"),
        ("~nosuchuser/x", "Could not determine home directory."),
        ("a\0b", "embedded null byte"),
        ("x" * 300, "File name too long"),
    ],
)
def test_a_path_that_is_no_files_is_told_with_the_setting(tmp_path, monkeypatch, path, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError) as error:
        AtenRecord(path, where="SGLANG_FL_FLAGOS_RECORD")
    assert str(error.value) == (
        f"SGLANG_FL_FLAGOS_RECORD: cannot write the record {path!r}: {reason}; "
        "give the path of a file in a folder that this process may write to"
    )
    assert [found.name for found in tmp_path.iterdir()] == ["folder"]


def test_the_report_shows_what_is_replaced_and_what_served(gems, settings, tmp_path):
    config = settings(FLAGOS_ATEN="1", FLAGOS_BLACKLIST="relu", REPORT=str(tmp_path / "report.json"))
    report = Report(OpManager(device_type="cpu"), "test 1", config)
    report.fact("aten", replace_aten(config).as_dict)
    torch.ones(3).neg()
    aten = report.as_dict()["aten"]
    assert aten["replaced"] == ["index_select", "mul.Tensor", "neg", "square"]
    assert aten["left_out"] == ["relu"]
    assert aten["served"] == ["neg"]
    assert report.table().splitlines()[-1].endswith("; 1 of them served a call")


def test_the_table_says_why_nothing_is_replaced(gems, settings, monkeypatch):
    monkeypatch.setenv("USE_FLAGGEMS", "0")
    config = settings(FLAGOS_ATEN="1")
    report = Report(OpManager(device_type="cpu"), "test 1", config)
    report.fact("aten", replace_aten(config).as_dict)
    line = "ATen operators: PyTorch's own, because switched off by USE_FLAGGEMS=0"
    assert report.table().splitlines()[-1] == line
