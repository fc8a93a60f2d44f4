# SPDX-License-Identifier: Apache-2.0
"""Every way in which torch_npu cannot be used, and the one line that says so."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from fl_vendor_ascend import PLATFORM, device, sdk


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with one device file, torch_npu 2.13.0 and one NPU; each can be taken away."""
    (tmp_path / "davinci0").touch()
    (tmp_path / "davinci_manager").touch()
    monkeypatch.setattr(device, "DEVICE_FILES", f"{tmp_path}/davinci[0-9]*")
    state = SimpleNamespace(devices=1, error=None, folder=tmp_path)

    def load():
        if state.error:
            raise state.error
        return SimpleNamespace(npu_swiglu=len, npu_rms_norm=len)

    monkeypatch.setattr(sdk, "load", load)
    monkeypatch.setattr(sdk, "_installed", lambda: True)
    monkeypatch.setattr(sdk, "version", lambda name: "2.13.0")
    monkeypatch.setattr(torch, "get_device_module", lambda name: SimpleNamespace(device_count=lambda: state.devices))
    return state


def reason(impls, op="silu_and_mul"):
    answer = impls[op].available()
    assert isinstance(answer, str)
    assert "\n" not in answer
    return answer


def test_no_device_file_and_then_torch_npu_is_not_even_looked_for(impls, machine, monkeypatch):
    (machine.folder / "davinci0").unlink()
    monkeypatch.setattr(sdk, "_installed", lambda: pytest.fail("looked for"))
    machine.error = ImportError("imported")
    assert reason(impls) == f"needs an Ascend NPU, there is no {machine.folder}/davinci[0-9]*"
    assert PLATFORM.present() == reason(impls)


def test_not_installed_names_the_release_that_fits_this_torch(impls, machine, monkeypatch):
    monkeypatch.setattr(sdk, "_installed", lambda: False)
    assert reason(impls) == f"torch_npu is not installed; pip install torch-npu=={torch.__version__.partition('+')[0]}"


def test_a_module_without_a_spec_counts_as_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_npu", SimpleNamespace(__spec__=None))
    assert sdk._installed()


@pytest.mark.parametrize(
    "error",
    [
        ImportError("libhccl.so: cannot open shared object file: No such file or directory\nand more"),
        OSError("libascendcl.so: cannot open shared object file"),
        RuntimeError("Two accelerators cannot be used at the same time in PyTorch: npu and cuda."),
    ],
)
def test_an_import_that_fails_names_both_versions_and_the_first_line(impls, machine, error):
    machine.error = error
    found = reason(impls)
    assert found.startswith(f"torch_npu 2.13.0 does not load with torch {torch.__version__}: {type(error).__name__}: ")
    assert str(error).splitlines()[0] in found
    assert "and more" not in found
    assert found.endswith("set_env.sh")


def test_an_error_without_a_text_is_a_reason_too(impls, machine):
    machine.error = OSError()
    assert "OSError: no message" in reason(impls)


def test_an_unknown_version_is_said(impls, machine, monkeypatch):
    def version(name):
        raise sdk.PackageNotFoundError(name)

    monkeypatch.setattr(sdk, "version", version)
    machine.devices = 0
    assert reason(impls) == f"torch_npu of unknown version, here with torch {torch.__version__}, sees no NPU"


def test_a_missing_function_concerns_its_operator_only(impls, machine):
    assert reason(impls, "rms_norm") == (
        f"torch_npu 2.13.0, here with torch {torch.__version__}, has no function npu_add_rms_norm"
    )
    assert impls["silu_and_mul"].available() is True
