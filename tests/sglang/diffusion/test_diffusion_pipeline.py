# SPDX-License-Identifier: Apache-2.0
"""Real SGLang Diffusion, from the launcher to the image: a Z-Image pipeline with small random weights on the CPU."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("diffusion_plugins", exc_type=ImportError)
pytest.importorskip("diffusers", reason="SGLang Diffusion needs diffusers")

import numpy as np
import tiny_zimage
from engine import START_TIMEOUT, distribution, environment

CUSTOM_OP = "sglang.multimodal_gen.runtime.layers.custom_op.CustomOp"
OVERRIDE = "SGLANG_DIFFUSION_PLATFORM_OVERRIDE"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_zimage.make(tmp_path_factory.mktemp("model"))


def test_the_models_weights_are_the_same_each_time_and_numbers(model: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    _ = [torch.full((64,), torch.nan) for _ in range(10_000)]  # what new memory may hold
    again = tiny_zimage.make(tmp_path)
    files = {path.relative_to(model): path for path in model.rglob("*.safetensors")}
    assert {path.parent.name for path in files} == {"transformer", "vae", "text_encoder"}
    for path, file in files.items():
        assert (again / path).read_bytes() == file.read_bytes(), path
        assert not any(weight.isnan().any() for weight in load_file(file).values()), path


class Images:
    """What became of five workers of one program: on a vendor's platform, on SGLang's own given out by us, on
    SGLang's own with our hooks, without us, and on a vendor's platform whose set-up fails.
    """

    def __init__(self, model: Path, folder: Path, plugin: Path) -> None:
        self.folder = folder
        self.setup = folder / "setup"
        vendor = {"SAMPLE_PLATFORM_LOG": str(self.setup), "SGLANG_FL_PREFER": "vendor|reference", OVERRIDE: ""}
        own = {OVERRIDE: "sglang_fl", "SAMPLE_PLATFORM": "0", "SGLANG_FL_PREFER": "reference"}
        job = {
            "model": str(model),
            "sampling": tiny_zimage.SAMPLING,
            "calls": tiny_zimage.CALLS,
            "runs": [
                self._run("vendor", vendor, report=True),
                self._run("own", own, report=True),
                self._run(
                    "hooks", {OVERRIDE: "cpu", "SGLANG_FL_PREFER": "reference", "SGLANG_PLUGINS": "my_ops"}, report=True
                ),
                self._run("without", {OVERRIDE: "cpu", "SGLANG_PLUGINS": "nobody"}),
                self._run(
                    "failing", {**vendor, "SAMPLE_PLATFORM": "1", "SAMPLE_PLATFORM_LOG": str(folder / "no" / "log")}
                ),
            ],
        }
        entry_point = "my_ops = sglang_fl.diffusion:register_hooks"
        hooks = distribution(folder / "my_ops", "my_ops", "", "[sglang.multimodal_gen.plugins]", entry_point)
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(Path(__file__).parent / "diffuse.py"), str(folder / "job.json")],
            env=environment({"SAMPLE_PLATFORM": "1"}, [plugin, hooks]),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=2 * START_TIMEOUT,  # five workers
            check=False,
        )
        self.log = done.stdout
        failed = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.failure")}
        assert done.returncode == 0, self.log[-4000:]
        assert set(failed) == {"failing"}, f"{failed}\n{self.log[-4000:]}"

    def _run(self, name: str, variables: dict[str, str], report: bool = False) -> dict[str, Any]:
        if report:
            variables = {**variables, "SGLANG_FL_REPORT": str(self.folder / f"{name}-report.json")}
        return {
            "variables": variables,
            "image": str(self.folder / f"{name}.json"),
            "failure": str(self.folder / f"{name}.failure"),
            "report": str(self.folder / f"{name}-report.rank0.json") if report else None,
        }

    def image(self, name: str) -> Any:
        return np.array(json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8")), dtype=np.int64)

    def report(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / f"{name}-report.rank0.json").read_text(encoding="utf-8"))
        return found


@pytest.fixture(scope="module")
def images(model: Path, tmp_path_factory: pytest.TempPathFactory, plugin: Callable[[str], Path]) -> Images:
    return Images(model, tmp_path_factory.mktemp("images"), plugin("sample-platform"))


def ran(report: dict[str, Any]) -> set[tuple[str, str, int, int]]:
    return {(row["operator"], row["implementation"], row["layers"], row["calls"]) for row in report["operators"]}


def expected(silu_and_mul: str) -> set[tuple[str, str, int, int]]:
    served = {"rms_norm": "reference", "rotary_embedding": "reference", "silu_and_mul": silu_and_mul}
    return {(op, impl, tiny_zimage.LAYERS[op], tiny_zimage.CALLS[op]) for op, impl in served.items()}


def test_a_vendors_platform_is_selected_by_itself_and_every_layer_ran_our_operators(images: Images) -> None:
    report = images.report("vendor")
    assert (report["role"], report["device"]) == ("diffusion worker", "cpu")
    assert report["seam"] == f"{CUSTOM_OP}.register_oot_forward(platform_key='native')"
    assert ran(report) == expected("vendor.sample_platform")
    assert report["left_to_framework"] == []


def test_named_explicitly_our_operators_run_on_sglangs_own_platform(images: Images) -> None:
    report = images.report("own")
    assert report["seam"] == f"{CUSTOM_OP}.dispatch_forward"
    assert ran(report) == expected("reference")


def test_on_a_built_in_platform_hooks_of_a_distribution_without_a_platform_run_our_operators(images: Images) -> None:
    report = images.report("hooks")
    assert report["seam"] == f"{CUSTOM_OP}.dispatch_forward"
    assert ran(report) == expected("reference")


def test_the_image_is_that_of_sglang_without_us(images: Images) -> None:
    without = images.image("without")
    assert without.shape == (64, 64, 3)
    assert without.std() > 10, "not one colour"
    for name in ("vendor", "own", "hooks"):
        assert np.abs(images.image(name) - without).max() <= 1, name


def test_the_vendors_setup_ran_once_in_the_worker_alone_before_its_arguments_and_its_code_were_imported(
    images: Images,
) -> None:
    lines = images.setup.read_text(encoding="utf-8").splitlines()
    assert lines == [f"setup {images.report('vendor')['pid']}"]


def test_the_table_says_what_runs_and_why(images: Images) -> None:
    assert "diffusion worker rank 0, cpu" in images.log
    assert re.search(r"silu_and_mul +SiluAndMul +7 +vendor\.sample_platform", images.log)


def test_an_offline_script_laid_out_as_sglang_wants_is_not_warned_of(images: Images) -> None:
    """Nothing of ours imports runtime modules before the platform is initialised."""
    assert "were imported before this worker initialized" not in images.log


def test_a_failing_required_initialisation_aborts_the_start_with_a_message_that_names_it(images: Images) -> None:
    assert not (images.folder / "failing.json").exists()
    assert (
        "sglang-fl: the diffusion platform for cpu cannot start, setup() of the vendor's DevicePlatform "
        "(sample_platform.setup) failed: FileNotFoundError" in images.log
    )
    assert "SGLANG_FL_DENY_VENDORS leaves the vendor out" in images.log
