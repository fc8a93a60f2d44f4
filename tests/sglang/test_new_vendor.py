# SPDX-License-Identifier: Apache-2.0
"""What ``fl-dispatch new-vendor`` renders, built into a wheel and installed, serves real SGLang as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine import CALLS_PER_FORWARD, serve
from sample_wheels import install_project

from fl_dispatch.cli import main

pytestmark = pytest.mark.sglang


def test_a_package_as_rendered_serves_every_operator_it_has(tmp_path: Path) -> None:
    package = tmp_path / "acme-npu"
    assert main(["new-vendor", "acme_npu", "--output", str(package)]) == 0
    site = install_project(package, tmp_path / "installed")
    run = serve(tmp_path, {"SGLANG_FL_PREFER": "vendor:acme_npu"}, plugins=[site])
    assert run.ran() == run.expected(dict.fromkeys(CALLS_PER_FORWARD, "vendor.acme_npu"))
    assert run.equal == 2
    assert {record["name"]: record["status"] for record in run.vendors()} == {"acme_npu": "registered"}
    # The start-up table, which is what a user sees.
    assert "vendor.acme_npu" in run.log
