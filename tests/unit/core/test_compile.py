# SPDX-License-Identifier: Apache-2.0
"""``torch.compile(fullgraph=True)`` of modules that call operators: one graph over many calls, no second one."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters

from fl_dispatch import FrozenSelectionError, NotSupported, SelectionPolicy
from fl_dispatch.callables import guarded
from fl_dispatch.ops import typed
from fl_dispatch.site import Site

CALLS = 100


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


class Norm(torch.nn.Module):
    """A module that calls one function on itself, as framework layers do."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = torch.nn.Parameter(torch.full((8,), 2.0))
        self.variance_epsilon = 1e-6

    def forward(self, x, residual=None):
        return self.function(self, x, residual)


class Ways:
    """How a module reaches an operator; each gives the function and the site behind it."""

    @staticmethod
    def guarded(manager, monkeypatch):
        site = Site(manager, "rms_norm", label="guarded")
        return guarded(site, manager.registry.spec("rms_norm")), site

    @staticmethod
    def typed(manager, monkeypatch):
        site = manager.shared_site("rms_norm")
        monkeypatch.setattr(typed, "_rms_norm", site)
        return typed.rms_norm, site

    @staticmethod
    def call_op(manager, monkeypatch):
        return lambda *args: manager.call_op("rms_norm", *args), manager.shared_site("rms_norm")


@pytest.fixture(params=["guarded", "typed", "call_op"])
def reach(request, monkeypatch):
    way = getattr(Ways, request.param)
    return lambda manager: way(manager, monkeypatch)


def vendor_norm(obj, x, residual=None):
    return x * obj.weight if residual is None else (x * obj.weight, x + residual)


def run(module, calls=CALLS, dtype=torch.float32):
    """Compile and call with changing values; every result is compared with eager. Returns the number of graphs."""
    counter = CompileCounter()
    compiled = torch.compile(module, fullgraph=True, backend=counter)
    with torch.no_grad():
        compiled(torch.randn(4, 8, dtype=dtype))
        with torch._dynamo.config.patch(error_on_recompile=True):
            for _ in range(calls - 1):
                compiled(torch.randn(4, 8, dtype=dtype))
        x = torch.randn(4, 8, dtype=dtype)
        torch.testing.assert_close(compiled(x), module(x))
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == counter.frame_count
    return counter.frame_count


DECLARED = {
    "nothing declared": {},
    "dtypes": {"dtypes": {"float32"}},
    "a predicate": {"supports": lambda obj, x, residual=None: x.shape[-1] == 8},
    "dtypes and a predicate": {"dtypes": {"float32"}, "supports": lambda obj, x, residual=None: True},
    "a device": {"devices": {"cpu"}},
    "a layer's field": {"honours": {"cast_x_before_out_mul": {False}}},
    "a layer predicate": {"supports_layer": lambda obj: obj.variance_epsilon > 0},
}
REFUSED = {
    "dtypes": {"dtypes": {"float16"}},
    "a predicate": {"supports": lambda obj, x, residual=None: "wants 9 columns" if x.shape[-1] != 9 else True},
    "a layer's field": {"honours": {"cast_x_before_out_mul": {True}}},
}


@pytest.mark.parametrize("decided", [True, False], ids=["decided before", "first call ever is traced"])
class TestOneGraph:
    def test_of_the_reference(self, manager, reach, decided):
        function, site = reach(manager())
        if decided:
            site.settle()
        assert run(Norm(function)) == 1

    @pytest.mark.parametrize("declared", DECLARED.values(), ids=DECLARED)
    def test_of_a_vendor(self, manager, impl, reach, decided, declared):
        one = manager(impl(op="rms_norm", fn=vendor_norm, **declared))
        function, site = reach(one)
        if decided:
            site.settle()
        assert run(Norm(function)) == 1
        assert site.impl.vendor == "acme"
        assert one.failures.noted() == []

    @pytest.mark.parametrize("declared", REFUSED.values(), ids=REFUSED)
    def test_of_the_next_candidate_where_a_limit_refuses(self, manager, impl, reach, decided, declared):
        function, site = reach(manager(impl(op="rms_norm", fn=vendor_norm, **declared)))
        if decided:
            site.settle()
        module, plain = Norm(function), Norm(manager().resolve_op("rms_norm"))
        assert run(module, calls=10) == 1
        x = torch.randn(2, 8)
        torch.testing.assert_close(module(x), plain(x))


def test_a_bound_layer_gives_one_graph(manager, impl):
    one = manager(impl(op="rms_norm", fn=vendor_norm, honours={"cast_x_before_out_mul": {False}}))
    module = Norm(None)
    site = one.bind("rms_norm", module)
    module.function = guarded(site, one.registry.spec("rms_norm"))
    assert run(module) == 1


def test_an_adapters_bridge_gives_one_graph(manager):
    one = manager()
    module = Norm(None)
    site = one.bind("rms_norm", module)

    def bridge(layer, x, residual=None):
        try:
            return site.fn(layer, x, residual)
        except Exception as error:  # noqa: BLE001  (as adapters guard their calls)
            return site.recover(error, layer, x, residual)

    module.function = bridge
    assert run(module) == 1


def test_the_graph_is_that_of_the_implementation_alone(manager, impl):
    def ops_in(function):
        graphs = []

        def backend(graph, example_inputs):
            graphs.append([node.target for node in graph.graph.nodes if node.op.startswith("call")])
            return graph.forward

        torch.compile(Norm(function), fullgraph=True, backend=backend)(torch.ones(2, 8))
        return graphs

    one = manager(impl(op="rms_norm", fn=vendor_norm, dtypes={"float32"}))
    assert ops_in(one.resolve_op("rms_norm")) == ops_in(vendor_norm)


def test_all_ways_in_one_module_give_one_graph(manager, impl, monkeypatch):
    one = manager(impl(op="rms_norm", fn=vendor_norm))
    functions = [getattr(Ways, name)(one, monkeypatch)[0] for name in ("guarded", "typed", "call_op")]

    def all_three(layer, x, residual=None):
        for function in functions:
            x = function(layer, x)
        return x

    assert run(Norm(all_three)) == 1


def test_eager_calls_afterwards_do_not_recompile(manager, reach):
    function, _ = reach(manager())
    module, counter = Norm(function), CompileCounter()
    compiled = torch.compile(module, fullgraph=True, backend=counter)
    compiled(torch.randn(4, 8))
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(3):
            x = torch.randn(4, 8)
            torch.testing.assert_close(module(x), compiled(x))
    assert counter.frame_count == 1


def test_other_operators_bound_afterwards_do_not_recompile(manager, reach, layer, x):
    one = manager()
    function, _ = reach(one)
    module, counter = Norm(function), CompileCounter()
    compiled = torch.compile(module, fullgraph=True, backend=counter)
    compiled(torch.randn(4, 8))
    with torch._dynamo.config.patch(error_on_recompile=True):
        one.call_op("silu_and_mul", layer, x)
        held = one.bind("rms_norm", layer)
        compiled(torch.randn(4, 8))
    assert held.impl.impl_id == "reference"
    assert counter.frame_count == 1


def test_a_policy_change_compiles_once_more_and_takes_effect(manager, impl, reach):
    one = manager(impl(op="rms_norm", fn=vendor_norm))
    function, site = reach(one)
    if site.label == "guarded":
        function = one.resolve_op("rms_norm")  # a site of its own is not followed up
    module, counter = Norm(function), CompileCounter()
    compiled = torch.compile(module, fullgraph=True, backend=counter)
    x = torch.randn(4, 8)
    torch.testing.assert_close(compiled(x), x * 2)
    one.configure(policy=SelectionPolicy(prefer="reference"))
    for _ in range(5):
        torch.testing.assert_close(compiled(x), module(x))
    assert not torch.allclose(compiled(x), x * 2)
    assert counter.frame_count == 2


def test_another_dtype_is_another_graph_with_its_own_candidate(manager, impl):
    one = manager(impl(op="rms_norm", fn=vendor_norm, dtypes={"float16"}))
    module, counter = Norm(one.resolve_op("rms_norm")), CompileCounter()
    compiled = torch.compile(module, fullgraph=True, backend=counter)
    half, single = torch.randn(4, 8).half(), torch.randn(4, 8)
    for _ in range(3):
        torch.testing.assert_close(compiled(half), half * 2.0 * torch.ones(8))
        torch.testing.assert_close(compiled(single), module(single))
    assert counter.frame_count == 2


def test_entering_a_context_inside_is_an_error(manager):
    one = manager()

    def in_context(layer, x, residual=None):
        with one.policy_context(SelectionPolicy(prefer="reference")):
            return one.call_op("rms_norm", layer, x)

    compiled = torch.compile(Norm(in_context), fullgraph=True, backend="eager")
    with pytest.raises((FrozenSelectionError, torch._dynamo.exc.Unsupported)) as caught:
        compiled(torch.ones(2, 8))
    assert "a policy context cannot be entered inside a compiled or captured region" in str(caught.value)


def test_while_a_watched_failure_is_pending_it_still_traces(manager, impl, failing, make_layer):
    broken = failing(answer=1.0)

    def norm(obj, x, residual=None):
        if not torch.compiler.is_compiling():
            broken()
        return x * obj.weight

    one = manager(impl(op="rms_norm", fn=norm, mutates=frozenset()))
    held = one.resolve_op("rms_norm")
    held(make_layer(), torch.ones(2, 8))
    assert one.failures.is_watched(held.site.impl)
    broken.failing = False
    counter = CompileCounter()
    compiled = torch.compile(Norm(held), fullgraph=True, backend=counter)
    for _ in range(5):
        compiled(torch.randn(2, 8))
    assert counter.frame_count == 1


def test_a_failure_while_tracing_is_an_error(manager, impl):
    def norm(obj, x, residual=None):
        raise NotSupported("odd size")

    held = manager(impl(op="rms_norm", fn=norm)).resolve_op("rms_norm")
    with pytest.raises(torch._dynamo.exc.Unsupported) as caught:
        torch.compile(Norm(held), fullgraph=True, backend="eager")(torch.ones(2, 8))
    assert "implementation 'vendor.acme' failed with NotSupported" in str(caught.value)
    assert "a trace or graph capture is under way, where nothing can be retried" in str(caught.value)


def test_tracing_while_a_context_is_open_is_an_error_that_says_what_to_do(manager):
    one = manager()
    compiled = torch.compile(Norm(lambda *args: one.call_op("rms_norm", *args)), fullgraph=True, backend="eager")
    with (
        one.policy_context(SelectionPolicy(prefer="reference")),
        pytest.raises(torch._dynamo.exc.Unsupported, match="cannot be traced while a policy context is open") as caught,
    ):
        compiled(torch.ones(2, 8))
    assert "compile outside of it, or use resolve_op or a bound layer" in str(caught.value)


def test_a_held_function_compiles_while_a_context_is_open(manager):
    one = manager()
    held = one.resolve_op("rms_norm")
    with one.policy_context(SelectionPolicy(prefer="reference")):
        assert run(Norm(held), calls=5) == 1
