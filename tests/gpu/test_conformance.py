# SPDX-License-Identifier: Apache-2.0
"""The conformance kit for every implementation of this repository that runs on an NVIDIA GPU, with fresh numbers each time
where ``--fl-seed`` says so.
"""

from __future__ import annotations

import pytest
import torch

from fl_dispatch import installed_vendors
from fl_dispatch.testing import vendor_conformance

if not torch.cuda.is_available():
    pytest.skip(f"needs a CUDA device: torch {torch.__version__} sees none", allow_module_level=True)

test_flagos = vendor_conformance("flagos", device="cuda")
test_reference = vendor_conformance("reference", device="cuda")


def test_the_cuda_vendor_is_installed_and_so_checked() -> None:
    assert "cuda" in installed_vendors()


if "cuda" in installed_vendors():
    test_cuda = vendor_conformance("cuda", device="cuda")
