# SPDX-License-Identifier: Apache-2.0
"""``fl-dispatch report``: written reports as tables, with what was compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fl_dispatch import BackendImplKind, OpImpl, OpManager, OpRegistry, Report, SelectionPolicy, load_config
from fl_dispatch.backends import reference
from fl_dispatch.cli import main
from fl_dispatch.ops import load_spec

SILU = load_spec("silu_and_mul").reference


class Activation(torch.nn.Module):
    """A layer without fields."""


def written(path: Path, factor: float, layer: Activation) -> Path:
    """The report of a process that compared two calls of an activation, off by a factor."""
    registry = OpRegistry()
    reference.register(registry)
    kind = BackendImplKind.VENDOR
    registry.register(OpImpl("silu_and_mul", "vendor.acme", kind, lambda obj, x: SILU(obj, x) * factor, vendor="acme"))
    manager = OpManager(registry, SelectionPolicy(prefer=("vendor",)), device_type="cpu")
    config = load_config("T_", {"T_REPORT": str(path), "T_COMPARE": "1"}, vendors=[])
    manager.watch(calls=True, numbers=config.compare)
    site = manager.bind("silu_and_mul", layer, label="SiluAndMul")
    for tokens in (1, 3):
        site.fn(layer, torch.ones(tokens, 16))
    file = Report(manager, "engine 1.0", config).write()
    assert file is not None
    return file


def test_right_calls_are_a_table_and_exit_code_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path / "report.json", 1.0, layer := Activation())
    assert main(["report", str(file)]) == 0
    out = capsys.readouterr().out
    assert "fl-dispatch on engine 1.0, worker rank 0, cpu" in out
    assert "Note: T_COMPARE judges every call in eager mode against float64, which is slow." in out
    row = next(line for line in out.splitlines() if line.startswith("silu_and_mul") and "tolerated" in line)
    assert row.split()[:5] == ["silu_and_mul", "SiluAndMul", "vendor.acme", "2", "0"]
    assert row.endswith("times what is tolerated  a Activation")
    assert layer is not None


def test_wrong_calls_are_named_and_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layer = Activation()
    good = written(tmp_path / "good.json", 1.0, layer)
    bad = written(tmp_path / "bad.json", 0.9, layer)
    assert main(["report", str(good), str(bad)]) == 1
    out = capsys.readouterr().out
    assert out.count("fl-dispatch on engine 1.0") == 2
    assert "2 in 1 layer " in out
    assert "silu_and_mul by vendor.acme was wrong first in a Activation: the result is wrong in 8 of 8 elements" in out
    assert "; float32[1, 16]@cpu\n" in out
    assert (
        "for which inputs: pytest --fl-vendor acme --fl-operator silu_and_mul; "
        'to go on without it: PER_OP="silu_and_mul=reference"'
    ) in out


def test_nan_is_said_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(written(tmp_path / "report.json", float("nan"), Activation()))]) == 1
    assert "2 in 1 layer  NaN or infinity" in capsys.readouterr().out


def test_json_is_the_list_of_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path / "report.json", 0.9, Activation())
    assert main(["report", "--json", str(file)]) == 1
    (report,) = json.loads(capsys.readouterr().out)
    assert report["compared"][0]["wrong_calls"] == 2


def test_missing_file_names_the_ones_that_are_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / "report.json", 1.0, Activation())
    assert main(["report", str(tmp_path / "report.json")]) == 2
    assert "there is report.rank0.json" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("content", ["[]", "{}", '{"schema_version": 99}'])
def test_other_json_is_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    (tmp_path / "kit.json").write_text(content, encoding="utf-8")
    assert main(["report", str(tmp_path / "kit.json")]) == 2
    assert "no report of this fl-dispatch" in " ".join(capsys.readouterr().err.split())


def test_compare_without_a_report_is_an_error_with_a_hint(capsys: pytest.CaptureFixture[str],
                                                          monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setenv("FL_DISPATCH_COMPARE", "1")
    assert main(["config", "--prefix", "FL_DISPATCH_"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "FL_DISPATCH_COMPARE: compare writes what it finds into the report, and there is none" in said
    assert "set FL_DISPATCH_REPORT=report.json too" in said
