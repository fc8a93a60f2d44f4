# SPDX-License-Identifier: Apache-2.0
"""``torch.compile(fullgraph=True)`` with the default compiler: traceable implementations as they are, others opaque."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from calls import IMPLS, copied, implementation, manager_for, run, sized_samples, worst
from torch._dynamo.utils import counters

from fl_dispatch import compile_refusal, compiled_call


class Layer(torch.nn.Module):
    """The fields of ``obj`` as frameworks keep them."""

    def __init__(self, fields: SimpleNamespace) -> None:
        super().__init__()
        for name, value in vars(fields).items():
            if isinstance(value, torch.Tensor):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(("op", "impl_id"), IMPLS)
def test_a_bound_site_compiles_into_one_graph_and_a_dynamic_one(op: str, impl_id: str) -> None:
    impl = implementation(op, impl_id)
    manager = manager_for(impl)
    for index, sample in enumerate(sized_samples(op, "bfloat16", 16, 41)):
        torch._dynamo.reset()
        counters.clear()
        layer = Layer(sample.obj)
        site = manager.bind(op, layer, device_type="cuda", dtype="bfloat16")
        site.settle()
        assert compile_refusal(impl, manager.registry.spec(op), layer) is None
        form = compiled_call(site)
        compiled = torch.compile(lambda *a, _f=form, _l=layer, **k: _f(_l, *a, **k), fullgraph=True)

        def call(obj: Any, *args: Any, _compiled: Any = compiled, **kwargs: Any) -> Any:
            return _compiled(*args, **kwargs)

        for tokens in (16, 24, 40):
            fresh = replace(list(sized_samples(op, "bfloat16", tokens, 42))[index], obj=sample.obj)
            fraction = worst(op, "bfloat16", fresh, run(call, copied(fresh)))
            assert fraction <= 1.0, f"{fraction:.3g} of the tolerance at {fresh.label!r}"
        assert counters["stats"]["unique_graphs"] <= 2, "recompiled for a third token count"
        assert not counters["graph_break"]
