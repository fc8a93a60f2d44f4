# SPDX-License-Identifier: Apache-2.0
"""vLLM keeps compiled graphs on disk: one cache folder, other implementations, other graphs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from vllm_engine import ONE_PROCESS, Run, generate

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

Runner = Callable[[str], Run]


def runner(
    folder: Path, plugin: Callable[[str], Path], two_layers: Path, settings: dict[str, str]
) -> Callable[[str], Run]:
    settings = {**ONE_PROCESS, **settings, "VLLM_CACHE_ROOT": str(folder / "cache")}
    count = iter(range(9))

    def run(implementation: str) -> Run:
        chosen = f"silu_and_mul=impl:vendor.piecewise_cpu.{implementation}"
        result = generate(
            folder / str(next(count)),
            {**settings, "VLLM_FL_PER_OP": chosen},
            plugins=[plugin("piecewise-cpu")],
            model=two_layers,
            prompts=1,
            new_tokens=4,
        )
        assert result.logprobs is not None, result.log[-4000:]
        assert result.report is not None
        assert ("silu_and_mul", f"vendor.piecewise_cpu.{implementation}", "SiluAndMul", 2, 0, 2) in result.ran()
        return result

    return run


def entries(folder: Path) -> set[str]:
    return {path.name for path in (folder / "cache" / "torch_compile_cache" / "torch_aot_compile").iterdir()}


def test_compiled_in_pieces_as_on_a_device(tmp_path: Path, plugin: Callable[[str], Path], two_layers: Path) -> None:
    """The vendor's own platform (facts in its ``Vendor`` value) lets vLLM compile and cache as it does on devices."""
    run = runner(tmp_path, plugin, two_layers, {"PIECEWISE_CPU": "1"})
    first = run("doubled")
    assert first.report is not None
    assert first.report["compilation"] == "VLLM_COMPILE"
    assert first.report["platform"] == "vllm_fl_adapter.platform.DispatchPlatform"
    other = run("tripled_untraceable")
    again = run("doubled")
    assert other.logprobs != first.logprobs
    assert again.logprobs == first.logprobs
    states = [one.report["graphs"]["LlamaModel"] for one in (first, other, again) if one.report is not None]
    assert states == ["traced in this process", "traced in this process", "loaded from vLLM's compile cache"]
    assert len(entries(tmp_path)) == 2


def test_on_the_platform_of_vllm(tmp_path: Path, plugin: Callable[[str], Path], two_layers: Path) -> None:
    run = runner(tmp_path, plugin, two_layers, {})
    assert run("doubled").logprobs != run("tripled").logprobs
    assert len(entries(tmp_path)) == 2
