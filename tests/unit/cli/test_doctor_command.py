# SPDX-License-Identifier: Apache-2.0
"""``fl-dispatch doctor``."""

from __future__ import annotations

import sys

import pytest

from fl_dispatch import Finding, adapters


def findings(done, subject: str) -> list[dict]:
    return [finding for finding in done.json()["findings"] if finding["subject"] == subject]


def levels(done, subject: str) -> list[str]:
    return [finding["level"] for finding in findings(done, subject)]


@pytest.fixture(autouse=True)
def _only_these_adapters(monkeypatch) -> None:
    """The tests run with and without our adapters installed; here none is, and none adds findings."""
    monkeypatch.setattr(adapters, "adapter_of", {}.get)


@pytest.fixture
def doctor(run, monkeypatch):
    """The command, without the findings that installed adapters contribute."""
    from fl_dispatch import doctor

    found = doctor.entry_points

    def entry_points(group: str):
        return [point for point in found(group=group) if not point.value.startswith("sglang_fl.")]

    monkeypatch.setattr(doctor, "entry_points", entry_points)
    return lambda *words: run("doctor", *words)


def test_without_a_fault_it_exits_with_0(doctor) -> None:
    done = doctor()
    assert done.code == 0, done.out
    assert "faults: 0" in done.out


def test_versions_come_from_metadata(doctor, install_vendor) -> None:
    install_vendor("good")
    found = doctor("--json").json()["versions"]
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["torch"]
    assert found["fl-good"] == "1.0"
    wanted = {"triton", "sglang", "vllm", "flag-gems", "sgl-kernel", "sglang-kernel", "flashinfer-python", "torch-npu"}
    wanted |= {"fl-dispatch", "sglang-fl", "vllm-fl-adapter"}
    assert wanted <= set(found)


def test_a_broken_vendor_is_a_fault_with_its_exception(doctor, install_vendor) -> None:
    install_vendor("broken")
    done = doctor()
    text = " ".join(done.out.split())
    assert done.code == 1
    expected = "fl-broken 1.0 is broken: ImportError: libbroken.so.1: cannot open shared object file"
    assert f"fault vendor broken: {expected}" in text
    assert "or leave it out with FL_DISPATCH_DENY_VENDORS=broken" in text
    assert "Traceback" not in done.out
    assert "fl_broken.py" in doctor("--verbose").out


def test_faults_come_first(doctor, install_vendor) -> None:
    install_vendor("broken")
    found = [finding["level"] for finding in doctor("--json").json()["findings"]]
    assert found == sorted(found, key=("fault", "note", "ok").index)
    assert doctor("--json").json()["faults"] == 1


def test_a_denied_vendor_is_a_note_and_not_imported(doctor, install_vendor, monkeypatch) -> None:
    install_vendor("broken")
    monkeypatch.setenv("FL_DISPATCH_DENY_VENDORS", "broken")
    done = doctor("--json")
    assert done.code == 0
    assert levels(done, "vendor broken") == ["note"]
    assert "fl_broken" not in sys.modules


def test_a_partial_vendor_says_what_is_refused_and_that_the_rest_works(doctor, install_vendor) -> None:
    install_vendor("partial")
    (finding,) = findings(doctor("--json"), "vendor partial")
    assert finding["level"] == "fault"
    assert "parameter 'residual' is missing" in finding["text"]
    assert "(1 other implementations of it are used)" in finding["text"]


@pytest.mark.parametrize(
    ("present", "level", "text"),
    [
        ("True", "ok", "fast: the device is here; an adapter offers it to its framework"),
        ("False", "note", "fast: its device is not here"),
        ("'no /dev/fast0'", "note", "fast: no /dev/fast0"),
        ("1 / 0", "note", "fast: ZeroDivisionError: division by zero"),
    ],
)
def test_a_device_that_a_vendor_gives_facts_about(doctor, install_vendor, present, level, text) -> None:
    source = f"""
        from fl_dispatch import BackendImplKind, DevicePlatform, OpImpl, Vendor

        def register(registry):
            registry.register(OpImpl("silu_and_mul", "vendor.fast", BackendImplKind.VENDOR, lambda obj, x: x, vendor="fast"))

        register = Vendor("fast", register, platform=DevicePlatform("fast", lambda: {present}, "gloo"))
        """
    install_vendor("fast", source)
    (finding,) = findings(doctor("--json"), "platform fast")
    assert (finding["level"], finding["text"]) == (level, text)


def test_a_vendor_without_its_sdk_is_a_note_with_the_reason(doctor, install_vendor) -> None:
    source = """
        from fl_dispatch import BackendImplKind, OpImpl

        def register(registry):
            registry.register(OpImpl("silu_and_mul", "vendor.idle", BackendImplKind.VENDOR, lambda obj, x: x,
                                     vendor="idle", available=lambda: "idle_sdk is not installed"))
        """
    install_vendor("idle", source)
    (finding,) = findings(doctor("--json"), "vendor idle")
    assert finding["level"] == "note"
    assert finding["text"] == "fl-idle 1.0: 0 of 1 implementations can be used here: idle_sdk is not installed"


def test_a_good_vendor_is_ok(doctor, install_vendor) -> None:
    install_vendor("good")
    assert levels(doctor("--json"), "vendor good") == ["ok"]


def test_two_distributions_with_one_vendor_name_are_one_fault(doctor, install_vendor, install) -> None:
    install_vendor("good")
    install("fl-other", "register = print", {"fl_dispatch.vendors": {"good": "fl_other:register"}})
    done = doctor("--json")
    faults = [finding for finding in findings(done, "vendor good") if finding["level"] == "fault"]
    assert [finding["text"] for finding in faults] == [
        "fl-good and fl-other provide the same vendor name; only one is used"
    ]
    assert done.code == 1


def test_wrong_settings_are_a_fault_and_no_vendor_is_loaded(doctor, install_vendor, monkeypatch) -> None:
    install_vendor("broken")
    monkeypatch.setenv("FL_DISPATCH_DENY_VENDOR", "broken")
    done = doctor("--json")
    assert done.code == 1
    (finding,) = findings(done, "FL_DISPATCH_*")
    expected = "unknown environment variable FL_DISPATCH_DENY_VENDOR; did you mean 'FL_DISPATCH_DENY_VENDORS'?"
    assert (finding["level"], finding["text"]) == ("fault", expected)
    assert levels(done, "vendors") == ["note"]
    assert "fl_broken" not in sys.modules


def test_an_id_that_does_not_exist_is_a_fault(doctor, monkeypatch) -> None:
    monkeypatch.setenv("FL_DISPATCH_PREFER", "impl:referense")
    done = doctor("--json")
    assert done.code == 1
    (fault,) = (finding for finding in findings(done, "FL_DISPATCH_*") if finding["level"] == "fault")
    assert "did you mean 'reference'?" in fault["text"]


def test_settings_of_another_prefix_are_read_too(doctor, monkeypatch) -> None:
    monkeypatch.setenv("VLLM_FL_PREFER", "vendr")
    assert levels(doctor("--json"), "VLLM_FL_*") == ["fault"]


def test_variables_of_an_adapter_that_is_not_installed_are_a_note(doctor, monkeypatch) -> None:
    monkeypatch.setenv("VLLM_FL_PREFER", "vendor")
    notes = [f for f in findings(doctor("--json"), "VLLM_FL_*") if f["level"] == "note"]
    assert [note["text"] for note in notes] == ["VLLM_FL_PREFER has no effect: vllm-fl-adapter is not installed"]


def test_variables_of_the_core_are_a_note_where_an_adapter_reads_its_own(doctor, monkeypatch) -> None:
    monkeypatch.setattr(adapters, "adapter_of", {"SGLANG_FL_": "sglang-fl"}.get)
    monkeypatch.setenv("FL_DISPATCH_PREFER", "vendor")
    (note,) = (f for f in findings(doctor("--json", "--prefix", "SGLANG_FL_"), "FL_DISPATCH_*") if f["level"] == "note")
    assert note["text"] == "FL_DISPATCH_PREFER has no effect where sglang-fl runs: it reads SGLANG_FL_*"
    assert note["hint"] == "set SGLANG_FL_PREFER instead"


def test_when_no_operator_can_be_served_that_is_a_fault(doctor, install_vendor, monkeypatch) -> None:
    install_vendor("partial")
    monkeypatch.setenv("FL_DISPATCH_PREFER", "vendor:partial")
    monkeypatch.setenv("FL_DISPATCH_STRICT", "1")
    done = doctor("--json")
    assert levels(done, "operator rms_norm") == ["fault"]
    assert "strict, and the wanted token 'vendor:partial'" in findings(done, "operator rms_norm")[0]["text"]


def test_when_only_some_operators_cannot_be_served_that_is_a_note(doctor, install_vendor, monkeypatch) -> None:
    install_vendor("good")
    monkeypatch.setenv("FL_DISPATCH_PREFER", "vendor:good")
    monkeypatch.setenv("FL_DISPATCH_STRICT", "1")
    done = doctor("--json")
    assert done.code == 0
    assert levels(done, "operator silu_and_mul") == ["note"]
    assert levels(done, "operator rms_norm") == []


@pytest.mark.parametrize(
    ("device", "installed", "wanted", "reason", "level"),
    [
        ("cpu", "5.0", "1", "flag_gems does not import here: RuntimeError: no device", "note"),
        ("cuda", "5.0", "1", "flag_gems does not import here: RuntimeError: no device", "fault"),
        ("cuda", None, "1", "flag_gems is not installed; pip install --no-deps flag-gems sqlalchemy greenlet", "note"),
        ("cuda", "5.0", "0", "switched off by USE_FLAGGEMS=0", "note"),
        ("cuda", "5.0", "1", None, "ok"),
    ],
)
def test_flagos_that_does_not_work_is_a_fault_only_beside_an_accelerator_and_where_it_is_wanted(
    device, installed, wanted, reason, level, doctor, monkeypatch
) -> None:
    monkeypatch.setenv("USE_FLAGGEMS", wanted)
    monkeypatch.setattr("fl_dispatch.backends.flagos.FlagosBackend._find_fault", staticmethod(lambda: reason))
    monkeypatch.setattr("fl_dispatch.facts.default_device_type", lambda: device)
    version = adapters.installed_version
    monkeypatch.setattr(adapters, "installed_version", lambda name: installed if name == "flag-gems" else version(name))
    (finding,) = findings(doctor("--json"), "flagos")
    assert finding["level"] == level
    assert (reason or "flag-gems 5.0 can be used") in finding["text"]
    assert ("this machine has none" in finding["text"]) == (device == "cpu")


def test_an_adapter_contributes_findings(doctor, install) -> None:
    source = """
        from fl_dispatch import Finding

        def check():
            yield Finding("fault", "engine", "its version is too old", "upgrade it")
        """
    install("an-adapter", source, {"fl_dispatch.doctor": {"engine": "an_adapter:check"}})
    done = doctor()
    assert done.code == 1
    assert "  fault engine: its version is too old\n        hint: upgrade it\n" in done.out


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("raise ImportError('half installed')", "the check itself failed: ImportError: half installed"),
        ("def check():\n    raise SystemExit('no')", "the check itself failed: SystemExit: no"),
        ("check = lambda: ['text']", "it returned 'text', which is not a fl_dispatch.Finding"),
        ("check = 7", "the check itself failed: TypeError"),
    ],
)
def test_a_broken_check_is_itself_a_fault(source, text, doctor, install) -> None:
    install("an-adapter", source, {"fl_dispatch.doctor": {"engine": "an_adapter:check"}})
    done = doctor("--json")
    (finding,) = findings(done, "engine")
    assert done.code == 1
    assert finding["level"] == "fault"
    assert text in finding["text"]
    assert "Traceback" in finding["detail"]


def test_a_finding_has_one_of_three_levels() -> None:
    with pytest.raises(ValueError, match="level must be one of ok, note, fault, not 'warning'"):
        Finding("warning", "x", "y")
