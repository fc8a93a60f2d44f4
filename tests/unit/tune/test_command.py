# SPDX-License-Identifier: Apache-2.0
"""``fl-dispatch tune`` from the command line to a file that a program uses."""

from __future__ import annotations

import json

import pytest
import torch

from fl_dispatch import load_config
from fl_dispatch.cli import main, tune_arguments
from fl_dispatch.tune import measure


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty folder with a small model's configuration, and no settings."""
    for variable in ("FL_DISPATCH_CONFIG", "FL_DISPATCH_PREFER", "USE_FLAGGEMS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    return tmp_path


QUICK = ("tune", "--model", ".", "--device", "cpu", "--rounds", "1", "--tokens", "1,4", "--prefix", "FL_DISPATCH_")


def test_it_measures_and_writes_a_policy_that_can_be_used(folder, capsys):
    assert main([*QUICK, "--ops", "silu_and_mul,rms_norm"]) == 0
    out, err = capsys.readouterr()
    assert "[1/6] silu_and_mul, float32, 1 tokens: " in err
    assert "use it:  FL_DISPATCH_CONFIG=fl-tuned.yaml" in out
    config = load_config("FL_DISPATCH_", {"FL_DISPATCH_CONFIG": "fl-tuned.yaml"})
    assert dict(config.policy.per_op) == {"silu_and_mul": ("reference",), "rms_norm": ("reference",)}
    assert config.tuned["for"] == "eager"
    assert config.tuned["shape"]["head_size"] == 8
    assert config.tuned["command"] == (
        "fl-dispatch tune --ops silu_and_mul,rms_norm --tokens 1,4 --model . --device cpu --rounds 1 --prefix FL_DISPATCH_"
    )
    assert (folder / "fl-tuned.svg").read_text().startswith("<svg ")


def test_a_file_that_is_there_is_not_overwritten_unasked(folder, capsys):
    (folder / "fl-tuned.yaml").write_text("prefer: reference")
    assert main([*QUICK, "--ops", "silu_and_mul"]) == 2
    assert "'fl-tuned.yaml' is there already; --force overwrites it" in capsys.readouterr().err
    assert main([*QUICK, "--ops", "silu_and_mul", "--force"]) == 0
    assert "tuned:" in (folder / "fl-tuned.yaml").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ops", "rmsnorm"], "--ops: 'rmsnorm' is no operator that is measured; did you mean 'rms_norm'?"),
        (["--ops", ","], "--ops: '' is no operator that is measured; known: gelu_and_mul, "),
        (["--tokens", "1,x"], "--tokens: 'x' is no number of tokens; give whole ones from 1 on by commas, for example"),
        (["--tokens", "0"], "--tokens: '0' is no number of tokens"),
        (["--tokens", "1,,4"], "--tokens: '' is no number of tokens"),
        (["--rounds", "0"], "--rounds: 0 is less than 1"),
        (["--dtypes", "bf16,fp8"], "--dtypes: 'fp8' is no dtype that is measured; known: bfloat16, float16, float32"),
        (["--dtypes", ","], "--dtypes: '' is no dtype that is measured"),
        (["--for", "graph"], "device time in graphs cannot be measured on cpu; use --for eager"),
        (["--output", "no/such/file.yaml"], "--output: there is no folder 'no/such'; make it, or name another file"),
        (["--output", "."], "--output: '.' is a folder; for example 'fl-tuned.yaml'"),
        (["--output", "x.svg"], "--output: 'x.svg' is where the picture goes; name the policy, for example 'x.yaml'"),
        (["--output", "x" * 300], "File name too long; name a file in a folder that you may write to"),
        (["--output", "/proc/x.yaml"], "--output: cannot write '/proc/x.yaml': No such file or directory; name a file"),
        (["--device", "nonsense"], "--device: 'nonsense' cannot be used here; there is cpu"),
        (["--device", "meta"], "--device: 'meta' cannot be used here; there is cpu"),
        (["--dtypes", "int32"], "--dtypes: 'int32' is no dtype that is measured; known: bfloat16, float16, float32"),
        (
            ["--model", "no-such/model"],
            "--model: cannot read 'no-such/model': No such file or directory; name a folder with the model's config.json "
            "(nothing is downloaded)",
        ),
    ],
)
def test_mistakes_are_told_before_anything_is_measured(folder, arguments, message, capsys):
    assert main([*QUICK, *arguments]) == 2
    err = capsys.readouterr().err
    assert message in " ".join(err.split())
    assert "[1/" not in err
    assert [path.name for path in folder.iterdir()] == ["config.json"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_here_is_told(capsys):
    assert main(["tune", "--device", "cuda", "--prefix", "FL_DISPATCH_"]) == 2
    assert "--device: 'cuda' cannot be used here; there is cpu (torch says" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("named", "current"), [("cuda:1", [1]), ("cuda", []), ("cpu:0", [])])
def test_one_of_several_devices_is_made_the_current_one(named, current, monkeypatch):
    chosen = []
    monkeypatch.setattr(torch, "zeros", lambda *size, device: torch.ones(1))
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert tune_arguments.device(named) == named.partition(":")[0]
    assert chosen == current


@pytest.mark.parametrize("there", ["c.yaml", "c.svg"])
def test_neither_the_policy_nor_its_picture_is_overwritten_unasked(folder, capsys, there):
    (folder / "a.yaml").write_text(FIGURES)
    (folder / there).write_text("mine")
    command = ["tune", "--from", "a.yaml", "-o", "c.yaml", "--prefix", "FL_DISPATCH_"]
    assert main(command) == 2
    assert f"{there!r} is there already; --force overwrites it" in " ".join(capsys.readouterr().err.split())
    assert (folder / there).read_text() == "mine"
    assert len(list(folder.glob("c.*"))) == 1
    assert main([*command, "--force"]) == 0
    assert "per_op:" in (folder / "c.yaml").read_text()
    assert (folder / "c.svg").read_text().startswith("<svg ")


def test_an_interruption_is_one_line_and_the_status_of_ctrl_c(folder, capsys, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "measure", interrupted)
    with pytest.raises(SystemExit) as ended:
        main([*QUICK])
    assert ended.value.code == 130
    assert capsys.readouterr().err == "fl-dispatch: interrupted; the policy is not written\n"
    assert [path.name for path in folder.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# A model", "is no JSON: Expecting value: line 1 column 1 (char 0); name a model's config.json"),
        ("[]", "has no num_attention_heads; name the configuration of a decoder"),
        ('{"num_attention_heads": 4, "hidden_size": 32}', "has no intermediate_size; name the configuration of a"),
        ('{"num_attention_heads": "4"}', "has '4' as num_attention_heads; name the configuration of a decoder"),
    ],
)
def test_a_configuration_of_something_else_is_refused(folder, capsys, text, message):
    (folder / "config.json").write_text(text)
    assert main([*QUICK]) == 2
    assert f"--model: 'config.json' {message}" in " ".join(capsys.readouterr().err.split())


def test_of_a_multimodal_model_the_language_model_is_measured(folder):
    sizes = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({"hidden_size": 7, "text_config": sizes}))
    assert main([*QUICK, "--ops", "silu_and_mul"]) == 0
    assert load_config("FL_DISPATCH_", {"FL_DISPATCH_CONFIG": "fl-tuned.yaml"}).tuned["shape"]["hidden"] == 32


def test_what_could_not_be_measured_is_told_with_its_reason(capsys, monkeypatch):
    monkeypatch.setenv("USE_FLAGGEMS", "0")
    assert main([*QUICK, "--ops", "silu_and_mul,rms_norm"]) == 0
    assert "\nnot able: flagos for silu_and_mul, rms_norm: switched off by USE_FLAGGEMS=0\n" in capsys.readouterr().out
    assert main([*QUICK, "--ops", "silu_and_mul", "--force", "--json"]) == 0
    failed = json.loads(capsys.readouterr().out)["not_able"]
    assert failed == {"silu_and_mul, float32, flagos": "switched off by USE_FLAGGEMS=0"}


FIGURES = """
tuned:
  {device: D, date: '2026-01-01', for: graph, dtype: bfloat16, not_able: {'x, y': reason}, figures: [
  {workload: w, op_name: rms_norm, dtype: bfloat16, tokens: 1, impl_id: native, floor_us: 0.1, host_us: 9, device_us: 2},
  {workload: w, op_name: rms_norm, dtype: bfloat16, tokens: 1, impl_id: flagos, floor_us: 0.1, host_us: 90, device_us: 1},
  {workload: w, op_name: rms_norm, dtype: bfloat16, tokens: 1, impl_id: v.x, floor_us: 0.1, host_us: 70, device_us: 3}]}
"""


@pytest.mark.parametrize(
    ("arguments", "order"),
    [
        ([], ["flagos", "native", "impl:v.x"]),
        (["--for", "eager"], ["native", "impl:v.x", "flagos"]),
        (["--for", "eager", "--without-native"], ["impl:v.x", "flagos"]),
    ],
)
def test_it_chooses_anew_from_figures_without_measuring(folder, capsys, arguments, order):
    (folder / "a.yaml").write_text(FIGURES)
    assert main(["tune", "--from", "a.yaml", "-o", "b.yaml", "--prefix", "FL_DISPATCH_", *arguments]) == 0
    shown = capsys.readouterr()
    assert "[1/" not in shown.err
    assert ("native gives way only to what takes less than two thirds of its host time" in shown.out) == (
        arguments == ["--for", "eager"]
    )
    config = load_config("FL_DISPATCH_", {"FL_DISPATCH_CONFIG": "b.yaml"})
    assert list(config.policy.per_op["rms_norm"]) == order
    assert config.tuned["not_able"] == {"x, y": "reason"}
    assert len(config.tuned["figures"]) == 3


@pytest.mark.parametrize(
    ("arguments", "order"),
    [
        ([], ["native", "flagos", "impl:v.x"]),
        (["--without-native"], ["flagos", "impl:v.x"]),
        (["--for", "eager"], ["native", "impl:v.x", "flagos"]),
    ],
)
def test_in_graphs_a_method_that_their_compiler_fuses_is_first(folder, capsys, arguments, order):
    (folder / "a.yaml").write_text(FIGURES.replace("host_us: 9,", "host_us: 9, fused: true,"))
    assert main(["tune", "--from", "a.yaml", "-o", "b.yaml", "--prefix", "FL_DISPATCH_", *arguments]) == 0
    assert ("\nnative is first for rms_norm: the compiler of these graphs fuses it" in capsys.readouterr().out) == (
        not arguments
    )
    config = load_config("FL_DISPATCH_", {"FL_DISPATCH_CONFIG": "b.yaml"})
    assert list(config.policy.per_op["rms_norm"]) == order
    assert [one.get("fused") for one in config.tuned["figures"]] == [True, None, None]  # kept for the next choice


def test_what_the_host_computes_itself_has_no_rule_to_tell_of(folder, capsys):
    (folder / "a.yaml").write_text(FIGURES.replace("{device: D", "{device_type: cpu, device: D"))
    assert main(["tune", "--from", "a.yaml", "-o", "b.yaml", "--prefix", "FL_DISPATCH_", "--for", "eager"]) == 0
    assert "native gives way" not in capsys.readouterr().out


def test_a_file_is_to_be_used_by_the_adapter_it_was_made_for(folder, capsys):
    (folder / "a.yaml").write_text(FIGURES.replace("{device: D", "{prefix: VLLM_FL_, device: D"))
    assert main(["tune", "--from", "a.yaml", "-o", "b.yaml", "--prefix", "FL_DISPATCH_"]) == 0
    assert "use it:  VLLM_FL_CONFIG=b.yaml" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (None, [], "--from: cannot read 'a.yaml': No such file or directory"),
        ("prefer: vendor", [], "--from: 'a.yaml' was not written by fl-dispatch tune"),
        (FIGURES, ["--dtypes", "float16"], "--dtypes: a.yaml has no figures of float16; known: bfloat16"),
        (FIGURES, ["--tokens", "1"], "--tokens: --from measures nothing; leave one of the two out"),
        (FIGURES, ["--model", "."], "--model: --from measures nothing; leave one of the two out"),
        (FIGURES, ["--rounds", "7"], "--rounds: --from measures nothing; leave one of the two out"),
    ],
)
def test_it_says_what_is_wrong_with_a_file_to_choose_from(folder, capsys, text, arguments, message):
    if text is not None:
        (folder / "a.yaml").write_text(text)
    assert main(["tune", "--from", "a.yaml", "-o", "b.yaml", "--prefix", "FL_DISPATCH_", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(folder.glob("b.*"))


@pytest.mark.parametrize(
    ("good", "damaged", "message"),
    [
        ("for: graph, ", "", "tuned.for must be graph or eager, and is missing"),
        ("for: graph", "for: warp", "tuned.for must be graph or eager, not 'warp'"),
        ("for: graph", "for: [graph]", "tuned.for must be graph or eager, not ['graph']"),
        ("dtype: bfloat16, not_able", "not_able", "tuned.dtype must be a word, and is missing"),
        ("dtype: bfloat16, not_able", "dtype: int3, not_able", "tuned.dtype is 'int3', of which there are no figures"),
        ("date: '2026-01-01', ", "", "tuned.date must be a word, and is missing"),
        ("date: '2026-01-01'", "date: 2026-13-01", "is no YAML: month must be in 1..12"),
        ("device: D, ", "", "tuned.device must be a word, and is missing"),
        ("{'x, y': reason}", "[1]", "tuned.not_able must be a mapping, not [1]"),
        ("tokens: 1,", "tokens: true,", "tuned.figures[0].tokens must be an int from 1 on, not True"),
        ("tokens: 1,", "tokens: 0,", "tuned.figures[0].tokens must be an int from 1 on, not 0"),
        ("device_us: 2", "device_us: .nan", "tuned.figures[0].device_us must be microseconds, 0 or more, not nan"),
        ("device_us: 2", "device_us: .inf", "tuned.figures[0].device_us must be microseconds, 0 or more, not inf"),
        ("device_us: 1", "device_us: -1", "tuned.figures[1].device_us must be microseconds, 0 or more, not -1"),
        ("host_us: 70", "host_us: fast", "tuned.figures[2].host_us must be microseconds, 0 or more, not 'fast'"),
        ("host_us: 9,", "fused: 1,", "tuned.figures[0].fused must be true or false, not 1"),
        ("host_us: 90,", "fused: true,", "tuned.figures[1].fused is of native only, not of 'flagos'"),
        ("impl_id: v.x", "impl_id: native", "tuned.figures[2] is of the same as tuned.figures[0]"),
        ("host_us: 70", "host_us: null", "tuned.figures[2].host_us must be microseconds, 0 or more, not None"),
        ("floor_us: 0.1, ", "", "tuned.figures[0].floor_us must be microseconds, 0 or more, and is missing"),
        ("impl_id: native", "impl_id: 7", "tuned.figures[0].impl_id must be a word, not 7"),
        ("host_us: 9,", "hots_us: 9,", "tuned.figures[0] has 'hots_us', which is nothing of a figure"),
        ("op_name: rms_norm", "op_name: rmsnorm", "has figures of another operator: "),
        ("device_us: 3}]}", "device", "is no YAML: line 7: expected ',' or '}', but got '<stream end>'"),
        ("device: D", "device: \a", "is no YAML: unacceptable character #x0007"),
    ],
)
def test_a_damaged_file_is_named_with_what_is_wrong_in_it(folder, capsys, good, damaged, message):
    assert good in FIGURES
    (folder / "a.yaml").write_text(FIGURES.replace(good, damaged, 1))
    assert main(["tune", "--from", "a.yaml", "-o", "b.yaml", "--prefix", "FL_DISPATCH_"]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert err.startswith("fl-dispatch: error: --from: 'a.yaml' ")
    assert message in err
    assert "object at" not in err
    assert not list(folder.glob("b.*"))


def test_a_date_without_quotes_is_a_date(folder):
    (folder / "a.yaml").write_text(FIGURES.replace("'2026-01-01'", "2026-01-01"))
    assert main(["tune", "--from", "a.yaml", "-o", "b.yaml", "--prefix", "FL_DISPATCH_"]) == 0
    assert load_config("FL_DISPATCH_", {"FL_DISPATCH_CONFIG": "b.yaml"}).tuned["date"] == "2026-01-01"


def test_more_tokens_than_memory_holds_do_not_lose_what_was_measured_before(folder, capsys):
    assert main([*QUICK, "--ops", "silu_and_mul", "--tokens", "1,1000000000000"]) == 0
    out, err = capsys.readouterr()
    assert "not able: reference for silu_and_mul: no inputs: RuntimeError: " in out
    assert "[2/2] silu_and_mul, float32, 1000000000000 tokens: flagos not able, reference not able" in err
    config = load_config("FL_DISPATCH_", {"FL_DISPATCH_CONFIG": "fl-tuned.yaml"})
    assert dict(config.policy.per_op) == {"silu_and_mul": ("reference",)}
    assert [figure["tokens"] for figure in config.tuned["figures"]] == [1]
