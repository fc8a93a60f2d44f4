# SPDX-License-Identifier: Apache-2.0
"""``fl-dispatch tune`` on the device, and the policy it wrote in use: eager, captured, compiled."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from fl_dispatch import OpManager, SelectionPolicy, compiled_call, load_config
from fl_dispatch.cli import main
from fl_dispatch.tune.choose import cost
from fl_dispatch.tune.measure import Figure

OPERATORS = ("rms_norm", "silu_and_mul")
TOKENS = (1, 64, 2048)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The file of a quick run over two operators."""
    path = tmp_path_factory.mktemp("tune") / "tuned.yaml"
    command = ["tune", "--ops", ",".join(OPERATORS), "--tokens", ",".join(map(str, TOKENS)), "--rounds", "5"]
    assert main([*command, "--prefix", "FL_DISPATCH_", "-o", str(path)]) == 0
    return {"path": path, **yaml.safe_load(path.read_text())}


def figures(tuned: dict[str, Any]) -> list[Figure]:
    return [Figure(**row) for row in tuned["tuned"]["figures"]]


def test_every_implementation_has_host_and_device_time(tuned: dict[str, Any]) -> None:
    for workload in ("rms_norm", "rms_norm, residual", "silu_and_mul"):
        for tokens in TOKENS:
            found = {f.impl_id for f in figures(tuned) if (f.workload, f.tokens) == (workload, tokens) and f.device_us}
            assert {"flagos", "vendor.cuda", "reference"} <= found
    assert all(figure.host_us and figure.host_us > 1 for figure in figures(tuned))


def test_no_time_is_below_the_floor_where_the_cache_is_too_small(tuned: dict[str, Any]) -> None:
    large = [figure for figure in figures(tuned) if figure.tokens == 2048]
    assert large
    for figure in large:
        assert figure.device_us is not None
        assert figure.device_us > 0.9 * figure.floor_us, figure


def test_the_first_choice_is_the_fastest_or_as_good(tuned: dict[str, Any]) -> None:
    config = load_config("X_", {"X_CONFIG": str(tuned["path"])})
    for op_name in OPERATORS:
        for tokens in TOKENS:
            sums: dict[str, float] = {}
            for figure in figures(tuned):
                one = cost(figure, "graph")
                if (figure.op_name, figure.tokens) == (op_name, tokens) and one is not None:
                    sums[figure.impl_id] = sums.get(figure.impl_id, 0.0) + one[0]
            first = config.policy.for_tokens(op_name, tokens).order(op_name)[0].text.removeprefix("impl:")
            assert sums[first] <= 1.25 * min(sums.values()), (op_name, tokens, sums, first)


def test_the_picture_is_there(tuned: dict[str, Any]) -> None:
    path: Path = tuned["path"]
    assert "vendor.cuda" in path.with_suffix(".svg").read_text()


POLICY = SelectionPolicy(by_tokens={"rms_norm": {64: "vendor", "more": "flagos"}})


@pytest.fixture
def norm() -> Any:
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(torch.rand(4096, device="cuda", dtype=torch.bfloat16) + 0.5)
    layer.variance_epsilon = 1e-6
    return layer


def bound(layer: Any) -> Any:
    manager = OpManager(policy=POLICY, device_type="cuda")
    site = manager.bind("rms_norm", layer, device_type="cuda", dtype="bfloat16")
    assert [part.impl.impl_id for part in site.leaves()] == ["vendor.cuda", "flagos"]
    return site


def wanted(layer: Any, x: torch.Tensor) -> torch.Tensor:
    wide = x.double()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * layer.weight.double()


@pytest.mark.parametrize("tokens", [1, 64, 65, 2048])
def test_orders_by_tokens_serve_eager_calls_and_captured_graphs(norm: Any, tokens: int) -> None:
    site = bound(norm)
    x = torch.randn(tokens, 4096, device="cuda", dtype=torch.bfloat16)
    for _ in range(2):
        out = site.fn(norm, x)
    torch.testing.assert_close(out.double(), wanted(norm, x), rtol=2**-7, atol=2**-9)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = site.fn(norm, x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(out.double(), wanted(norm, x), rtol=2**-7, atol=2**-9)


def test_one_compiled_graph_decides_by_tokens(norm: Any) -> None:
    torch._dynamo.reset()
    call = compiled_call(bound(norm))
    step = torch.compile(lambda x: call(norm, x), fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for tokens in (2, 64, 65, 512):
            x = torch.randn(tokens, 4096, device="cuda", dtype=torch.bfloat16)
            torch._dynamo.mark_dynamic(x, 0)
            torch.testing.assert_close(step(x).double(), wanted(norm, x), rtol=2**-7, atol=2**-9)


def test_call_op_decides_by_tokens() -> None:
    manager = OpManager(policy=POLICY, device_type="cuda")
    layer = SimpleNamespace(weight=torch.ones(4096, device="cuda", dtype=torch.bfloat16), variance_epsilon=1e-6)
    for tokens in (64, 65):
        x = torch.randn(tokens, 4096, device="cuda", dtype=torch.bfloat16)
        torch.testing.assert_close(
            manager.call_op("rms_norm", layer, x).double(), wanted(layer, x), rtol=2**-7, atol=2**-9
        )
    assert [part.impl.impl_id for part in manager.shared_site("rms_norm").leaves()] == ["vendor.cuda", "flagos"]
