# SPDX-License-Identifier: Apache-2.0
"""``fl-dispatch explain``."""

from __future__ import annotations

import pytest


def test_the_chosen_one_and_the_others_with_reasons(run, install_vendor) -> None:
    install_vendor("good")
    done = run("explain", "rms_norm", "--device", "cpu", "--dtype", "float32", "--policy", "prefer=vendor:good")
    assert done.code == 0
    assert "operator 'rms_norm' (cpu, float32; order vendor:good > flagos > vendor > reference): reference" in done.out
    assert " x vendor.good              takes bfloat16, float16, not float32" in done.out
    assert "  -> reference                first able in the order, by token reference" in done.out


def test_json_is_the_selection(run, install_vendor) -> None:
    install_vendor("good")
    found = run("explain", "rms_norm", "--dtype", "half", "--policy", "prefer=impl:vendor.good", "--json").json()
    assert found["prefix"] == "FL_DISPATCH_"
    assert found["chosen"] == "vendor.good"
    assert found["device"]["dtype"] == "float16"
    assert found["candidates"][0]["impl_id"] == "vendor.good"
    assert all(c["reason"] for c in found["candidates"])


def test_vendors_that_are_no_candidates_are_named(run, install_vendor) -> None:
    install_vendor("good")
    install_vendor("broken")
    done = run("explain", "rms_norm", "--policy", "deny_vendors=good")
    text = " ".join(done.out.split())
    assert done.code == 0
    assert "note: vendor good (fl-good 1.0) is denied: vendor 'good' is denied (deny_vendors); not imported" in text
    assert "note: vendor broken (fl-broken 1.0) is broken: ImportError: libbroken.so.1" in text


def test_exit_code_1_when_nothing_may_run(run, install_vendor) -> None:
    install_vendor("good")
    words = ("explain", "rms_norm", "--dtype", "float32", "--policy", "prefer=vendor:good,strict=1")
    done = run(*words)
    assert done.code == 1
    assert "strict, and the wanted token 'vendor:good' has no able implementation" in " ".join(done.out.split())
    assert "hint: turn strict off" in done.out
    found = run(*words, "--json")
    assert (found.code, found.json()["chosen"]) == (1, None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rmsnorm"], "unknown operator 'rmsnorm'; did you mean 'rms_norm'?"),
        (["rms_norm", "--dtype", "bflot16"], "--dtype: torch has no dtype 'bflot16'; did you mean 'bfloat16'?"),
        (["rms_norm", "--policy", "prefer=vendr"], "did you mean 'vendor'?"),
        (["rms_norm", "--policy", "prefer=vendor:godo"], "no installed vendor is named 'godo'; did you mean 'good'?"),
        (["rms_norm", "--policy", "prefer=impl:vendor.godo"], "did you mean 'vendor.good'?"),
        (["rms_norm", "--policy", "strickt=1"], "--policy: unknown key 'strickt'; did you mean 'strict'?"),
        (["rms_norm", "--policy", "strict=maybe"], "'maybe' is neither on nor off; use 1 or 0"),
        (["rms_norm", "--policy", "vendor,strict=1"], "--policy: 'vendor' is not KEY=VALUE"),
        (["rms_norm", "--policy", "policy.yaml"], "--policy: there is no file 'policy.yaml'"),
        (["rms_norm", "--policy", ""], "--policy: there is no file ''"),
        (["rms_norm", "--policy", "per_op=rmsnorm=vendor"], "unknown operator 'rmsnorm'; did you mean 'rms_norm'?"),
    ],
)
def test_a_misspelling_is_a_usage_error_with_a_hint(words, message, run, install_vendor) -> None:
    install_vendor("good")
    done = run("explain", *words)
    assert (done.code, done.out.replace("a vendor that talks\n", "")) == (2, "")
    assert message in " ".join(done.err.split())


@pytest.mark.parametrize(("word", "name"), [("fp16", "float16"), ("bf16", "bfloat16"), ("torch.float", "float32")])
def test_usual_short_names_of_dtypes(word, name, run) -> None:
    assert run("explain", "rms_norm", "--dtype", word, "--json").json()["device"]["dtype"] == name


def test_a_device_may_carry_an_index(run) -> None:
    assert run("explain", "rms_norm", "--device", "cpu:0", "--json").json()["device"]["type"] == "cpu"


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("prefer=reference", "reference > flagos > vendor"),
        ("prefer=vendor,reference,strict=0", "vendor > reference > flagos"),
        ("prefer=vendor|reference", "vendor > reference > flagos"),
        ("per_op=rms_norm=reference,silu_and_mul=vendor,prefer=vendor", "reference > vendor > flagos"),
        ("per_op=silu_and_mul=vendor;rms_norm=reference|vendor", "reference > vendor > flagos"),
    ],
)
def test_a_policy_in_words(policy, order, run) -> None:
    assert f"order {order}" in run("explain", "rms_norm", "--policy", policy).out


def test_a_policy_from_a_file_stands_below_the_environment(run, tmp_path, monkeypatch) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("prefer: [reference]\nper_op:\n  rms_norm: [vendor]\n", encoding="utf-8")
    words = ("explain", "rms_norm", "--policy", str(file))
    assert "order vendor > reference > flagos" in run(*words).out
    monkeypatch.setenv("FL_DISPATCH_PER_OP", "rms_norm=flagos")
    assert "order flagos > reference > vendor" in run(*words).out


def test_words_on_the_command_line_stand_above_the_environment(run, monkeypatch) -> None:
    monkeypatch.setenv("FL_DISPATCH_PREFER", "vendor")
    assert "order reference > flagos > vendor" in run("explain", "rms_norm", "--policy", "prefer=reference").out


def test_the_prefix_decides_which_variables_are_read(run, monkeypatch) -> None:
    monkeypatch.setenv("VLLM_FL_PREFER", "reference")
    assert "order flagos > vendor > reference" in run("explain", "rms_norm").out
    done = run("explain", "rms_norm", "--prefix", "VLLM_FL_")
    assert "order reference > flagos > vendor" in done.out
    assert done.out.startswith("settings: VLLM_FL_* (asked for with --prefix)")


def test_what_a_layer_must_have_is_said_as_there_is_none_here(run, install_vendor) -> None:
    source = """
        from fl_dispatch import BackendImplKind, OpImpl

        def rms_norm(obj, x, residual=None):
            return x

        def register(registry):
            registry.register(OpImpl("rms_norm", "vendor.rounds", BackendImplKind.VENDOR, rms_norm, vendor="rounds",
                                     honours={"cast_x_before_out_mul": {False}}))
        """
    install_vendor("rounds", source)
    text = " ".join(run("explain", "rms_norm").out.split())
    assert "note: vendor.rounds takes only layers with cast_x_before_out_mul=False; the table of a worker shows" in text
