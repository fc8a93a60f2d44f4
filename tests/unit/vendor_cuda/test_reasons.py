# SPDX-License-Identifier: Apache-2.0
"""Every way in which sgl_kernel cannot be used, and the one line that says so."""

from __future__ import annotations

import pytest
import torch

from fl_vendor_cuda import sdk

LONG = """
[sgl_kernel] CRITICAL: Could not load any common_ops library!

Attempted locations:
1. Architecture-specific pattern: /site/sgl_kernel/sm90/common_ops.* - found files: ['/site/common_ops.abi3.so']

Error details from previous import attempts:
- ImportError: /site/common_ops.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEab
- ModuleNotFoundError: No module named 'common_ops'
"""


@pytest.fixture
def distributions(monkeypatch):
    """Sets which distributions are installed."""

    def install(**versions: str) -> None:
        known = {name.replace("_", "-"): version for name, version in versions.items()}

        def version(name: str) -> str:
            if name not in known:
                raise sdk.PackageNotFoundError(name)
            return known[name]

        monkeypatch.setattr(sdk, "version", version)

    return install


def reason(impls, op="rms_norm"):
    answer = impls[op].available()
    assert isinstance(answer, str)
    assert "\n" not in answer
    return answer


def test_a_cpu_build_of_torch(impls, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert reason(impls) == f"needs a CUDA build of torch, this is torch {torch.__version__}"


def test_no_gpu(impls, sgl_kernel, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert reason(impls) == f"needs an NVIDIA GPU, torch {torch.__version__} (CUDA 13.0) sees none"


def test_not_installed(impls, sgl_kernel, monkeypatch):
    monkeypatch.setattr(sdk.importlib.util, "find_spec", lambda name: None)
    assert reason(impls).startswith("sgl_kernel is not installed; pip install sglang-kernel")


@pytest.mark.parametrize(
    ("installed", "shown"),
    [
        ({"sglang_kernel": "0.4.2"}, "sgl_kernel (sglang-kernel 0.4.2)"),
        ({"sgl_kernel": "0.3.21"}, "sgl_kernel (sgl-kernel 0.3.21)"),
        ({}, "sgl_kernel (sglang-kernel of unknown version)"),
    ],
)
def test_a_binary_for_another_torch_names_both_versions_and_the_symbol(
    impls, sgl_kernel, monkeypatch, distributions, installed, shown
):
    distributions(**installed)

    def broken():
        raise ImportError(LONG)

    monkeypatch.setattr(sdk, "load", broken)
    found = reason(impls)
    assert found.startswith(f"{shown} does not load with torch {torch.__version__} (CUDA 13.0): ")
    assert "ImportError: /site/common_ops.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEab" in found
    assert "common_ops'" not in found


def test_any_other_failure_of_the_import_is_a_reason_too(impls, sgl_kernel, monkeypatch):
    def broken():
        raise OSError("libcublasLt.so.13: cannot open shared object file\nand more")

    monkeypatch.setattr(sdk, "load", broken)
    assert "OSError: libcublasLt.so.13: cannot open shared object file" in reason(impls)


def test_a_missing_function_concerns_its_operator_only(impls, sgl_kernel, monkeypatch, distributions):
    distributions(sgl_kernel="0.3.1")
    monkeypatch.setattr(type(sgl_kernel), "gemma_fused_add_rmsnorm", None)
    assert reason(impls, "gemma_rms_norm") == (
        f"sgl_kernel (sgl-kernel 0.3.1), here with torch {torch.__version__}, has no function gemma_fused_add_rmsnorm"
    )
    assert impls["rms_norm"].available() is True


def test_the_approximate_tanh_of_hopper_is_refused_and_nothing_else(impls, sgl_kernel, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert "approximate instruction" in reason(impls, "gelu_tanh_and_mul")
    assert [op for op, impl in impls.items() if impl.available() is not True] == ["gelu_tanh_and_mul"]


def test_with_everything_there_all_are_available(impls, sgl_kernel):
    assert {impl.available() for impl in impls.values()} == {True}
