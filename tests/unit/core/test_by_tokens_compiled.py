# SPDX-License-Identifier: Apache-2.0
"""Orders by tokens under ``torch.compile``: the graph decides when it runs, and is not made for some number of tokens."""

from __future__ import annotations

import copy

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from fl_dispatch import SelectionError, SelectionPolicy, compile_refusal, compiled_call
from fl_dispatch.callables import guarded
from fl_dispatch.compiled import compiled_call as call_in_graph

OP = "rms_norm"
READS = frozenset({"weight", "variance_epsilon"})


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def doubled(obj, x, residual=None):
    return x * obj.weight * 2 if residual is None else (x * obj.weight * 2, x + residual)


def tripled_in_place(obj, x, residual):
    if residual is None:
        return x * obj.weight * 3
    residual.add_(x)
    x.mul_(3)
    return x, residual


@pytest.fixture
def built(manager, impl):
    """Up to two tokens one vendor, more another that writes in place, both declared; ``reads`` as given."""

    def build(reads=READS, traceable=True, order="vendor:large"):
        small = impl("small", op=OP, run=doubled, reads=READS, mutates=frozenset(), traceable=True)
        mutates = frozenset({"x", "residual"})
        large = impl("large", op=OP, run=tripled_in_place, reads=reads, mutates=mutates, traceable=traceable)
        wishes = SelectionPolicy(prefer="reference", by_tokens={OP: {2: "vendor:small", "more": order}})
        return manager(small, large, policy=wishes)

    return build


class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((8,), 1.0))
        self.variance_epsilon = 1e-6


def run(function, layer):
    """Compile, call with 2 to 5 tokens with and without a residual; the graphs and the factors."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda x, r: function(layer, x, r), backend=counter, fullgraph=True)
    factors = {}
    with torch.no_grad():
        for tokens in (5, 2, 3, 4):
            for with_residual in (False, True):
                x = torch.randn(tokens, 8)
                given, residual = x.clone(), x.clone() if with_residual else None
                for tensor in filter(lambda one: one is not None, (given, residual)):
                    torch._dynamo.mark_dynamic(tensor, 0)  # an error where the graph is for one number only
                out = compiled(given, residual)
                if with_residual:
                    out, added = out
                    assert torch.equal(added, 2 * x)
                factors.setdefault(tokens, set()).add(round(float((out / x).mean()), 3))
    return counter.frame_count, factors


EXPECTED = {5: {3.0}, 2: {2.0}, 3: {3.0}, 4: {3.0}}


@pytest.mark.parametrize("traceable", [True, False])
def test_one_graph_serves_every_number_of_tokens(built, traceable):
    manager = built(traceable=traceable)
    layer = Norm()
    site = manager.bind(OP, layer)
    graphs, factors = run(guarded(site, manager.registry.spec(OP)), layer)
    assert factors == EXPECTED
    assert graphs == 2  # without and with a residual


def test_without_a_layer_a_graph_is_made_for_each_part(built):
    manager, layer = built(), Norm()
    counter = CompileCounterWithBackend("aot_eager")
    step = torch.compile(lambda x: manager.call_op(OP, layer, x), backend=counter, fullgraph=True)
    with torch.no_grad():
        assert [float(step(torch.ones(tokens, 8)).mean()) for tokens in (5, 2, 3, 4)] == [3.0, 2.0, 3.0, 3.0]
    assert counter.frame_count >= 2


def test_what_an_adapter_puts_into_its_graph_decides_in_it_too(built):
    layer = Norm()
    graphs, factors = run(compiled_call(built().bind(OP, layer)), layer)
    assert (graphs, factors) == (2, EXPECTED)


def test_one_that_cannot_be_in_the_operator_is_passed_over_and_noted(built, caplog):
    manager = built(reads=None, order=["vendor:large", "vendor:small"])
    layer = Norm()
    _, factors = run(compiled_call(manager.bind(OP, layer)), layer)
    assert factors == {tokens: {2.0} for tokens in EXPECTED}
    (note,) = manager.failures.noted()
    assert note["impl_id"] == "vendor.large"
    assert note["reason"].startswith("in a compiled graph vendor.small runs instead: does not declare which fields")
    assert "in a compiled graph vendor.small runs instead of vendor.large" in caplog.text


def test_where_nothing_can_be_in_it_that_is_an_error(manager, impl):
    undeclared = impl("acme", op=OP, run=doubled, traceable=True)
    wishes = SelectionPolicy(prefer="vendor", strict=True, by_tokens={OP: {2: "reference", "more": "vendor"}})
    layer = Norm()
    site = manager(undeclared, policy=wishes).bind(OP, layer)
    with pytest.raises(
        SelectionError, match=r"has no implementation for a compiled graph: vendor.acme: does not declare"
    ):
        call_in_graph(site)


def test_the_frameworks_own_method_cannot_be_in_it(manager):
    wishes = SelectionPolicy(prefer="reference", by_tokens={OP: {2: "native"}})
    layer = Norm()
    site = manager(policy=wishes).bind(OP, layer, native=doubled)
    spec = site.manager.registry.spec(OP)
    assert compile_refusal(site.native, spec, site.obj) is None
    reason = compile_refusal(site.native, spec, site.obj, by_tokens=True)
    assert reason.startswith("the framework's own method needs its whole layer")


@pytest.mark.parametrize("buckets", [{2: "native", "more": "vendor"}, {2: "vendor", "more": "native"}])
def test_the_frameworks_method_serves_all_tokens_of_a_traced_layer_that_wants_it_for_some(manager, impl, buckets):
    vendor = impl("acme", op=OP, run=doubled, reads=READS, mutates=frozenset(), traceable=True)
    here = manager(vendor, policy=SelectionPolicy(prefer="vendor", by_tokens={OP: buckets}))
    eager = here.bind(OP, Norm(), native=doubled)
    layer = Norm()
    traced = here.bind(OP, layer, native=doubled, traced=True)
    assert (len(eager.parts), eager.is_native) == (2, False)
    assert (traced.parts, traced.is_native) == ((), True)
    assert traced.selection.why.endswith("token native; for every number of tokens, as the layer is compiled")
    here.configure(compiled=True)
    assert here.bind(OP, layer, native=doubled).is_native


ORDERS = {"by tokens": {"by_tokens": {OP: {2: "vendor:b", "more": ["vendor:a", "vendor:b"]}}}, "always": {}}


def step(manager, layer):
    """A bound layer, and a new graph of it."""
    site = manager.bind(OP, layer, traced=True)
    function = guarded(site, manager.registry.spec(OP))
    return function, lambda: torch.compile(lambda x: function(layer, x), backend="aot_eager", fullgraph=True)


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_a_graph_made_after_a_policy_change_follows_it(manager, impl, order):
    runs = {vendor: lambda obj, x, residual, factor=factor: x * factor for vendor, factor in (("a", 2), ("b", 3))}
    vendors = [impl(vendor, op=OP, run=run, reads=READS, mutates=frozenset()) for vendor, run in runs.items()]
    here, layer, x = manager(*vendors, policy=SelectionPolicy(prefer="vendor:a", **order)), Norm(), torch.ones(5, 8)
    _, new_graph = step(here, layer)
    with torch.no_grad():
        assert float(new_graph()(x).mean()) == 2.0
        here.configure(policy=SelectionPolicy(prefer="vendor:b"))
        torch._dynamo.reset()
        assert float(new_graph()(x).mean()) == 3.0
        here.configure(policy=SelectionPolicy(prefer="vendor:a", **order))
        torch._dynamo.reset()
        assert float(new_graph()(x).mean()) == 2.0


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_a_graph_made_after_a_demotion_goes_without_the_demoted(manager, impl, failing, order):
    culprit = failing(answer=None, failing=False)
    run = lambda obj, x, residual: (culprit(), x * 2)[1]  # noqa: E731  (two things in one place)
    first = impl("a", op=OP, run=run, reads=READS, mutates=frozenset())
    second = impl("b", op=OP, run=doubled, reads=READS, mutates=frozenset(), traceable=True)
    here, layer, x = manager(first, second, policy=SelectionPolicy(prefer="vendor", **order)), Norm(), torch.ones(5, 8)
    function, new_graph = step(here, layer)
    graph = new_graph()
    with torch.no_grad():
        graph(x)
        assert culprit.calls == 1
        culprit.failing = True
        for _ in range(3):
            function(layer, x)
        assert [one["impl_id"] for one in here.failures.demotions()] == ["vendor.a"]
        assert torch.equal(graph(x), doubled(layer, x))
        torch._dynamo.reset()
        assert torch.equal(new_graph()(x), doubled(layer, x))
    assert culprit.calls == 4


def test_of_a_traced_layer_each_part_has_only_what_can_be_in_the_operator(manager, impl):
    undeclared = impl("a", op=OP, run=doubled, mutates=frozenset(), traceable=True, dtypes=frozenset({"float32"}))
    declared = impl("b", op=OP, run=doubled, mutates=frozenset(), reads=READS)
    small = impl("c", op=OP, run=doubled, mutates=frozenset(), reads=READS)
    wishes = SelectionPolicy(prefer="reference", by_tokens={OP: {2: "vendor:c", "more": ["vendor:b", "vendor:a"]}})
    here, layer = manager(undeclared, declared, small, policy=wishes), Norm()
    site = here.bind(OP, layer, dtype="float32", traced=True)
    for _ in range(3):
        here.failed(declared, "float32", RuntimeError("went wrong"))  # its part decides anew
    assert [part.impl.impl_id for part in site.leaves()] == ["vendor.c", "reference"]
    reasons = {one.impl.impl_id: one.reason for one in site.leaves()[-1].selection.passed_over}
    assert reasons["vendor.a"].startswith("does not declare which fields of obj it reads")
    eager = here.bind(OP, layer, dtype="float32")
    assert eager.leaves()[-1].impl.impl_id == "vendor.a"


def operator_in(site, layer):
    """The operator that a graph of a bound layer holds."""
    held = []

    def backend(graph, _):
        held.extend(node.target for node in graph.graph.nodes if str(node.target).startswith("fl_dispatch."))
        return graph

    torch._dynamo.reset()
    call = compiled_call(site)
    with torch.no_grad():
        torch.compile(lambda x, r: call(layer, x, r), backend=backend, fullgraph=True)(
            torch.ones(5, 8), torch.ones(5, 8)
        )
    (operator,) = held
    return operator


def test_the_operator_declares_what_any_part_writes_to(built):
    layer = Norm()
    operator = operator_in(built().bind(OP, layer), layer)
    arguments = operator._schema.arguments
    assert {one.name for one in arguments if one.alias_info and one.alias_info.is_write} == {"x", "residual"}
    assert (
        torch.Tag.needs_fixed_stride_order in operator.tags
    )  # kernels compute addresses from the layout they are given


def test_graphs_of_what_does_the_same_share_an_operator_and_others_do_not(manager, impl):
    limits = {"dtypes": frozenset({"float32"}), "supports": lambda obj, x, residual=None: True}
    large = impl("a", op=OP, run=doubled, reads=READS, mutates=frozenset(), **limits)
    others = [impl(name, op=OP, run=doubled, reads=READS, mutates=frozenset()) for name in ("b", "c")]
    layer = Norm()

    def operator(then="vendor:b", bound=2, **known):
        wishes = SelectionPolicy(prefer="reference", by_tokens={OP: {bound: "vendor:c", "more": ["vendor:a", then]}})
        return operator_in(manager(large, *others, policy=wishes).bind(OP, layer, **known), layer)

    first = operator()
    assert operator() is first
    found = {first, operator(then="vendor:c"), operator(bound=3), operator(dtype="float32")}
    assert len(found) == 4


def test_only_what_would_have_run_is_noted_when_it_cannot_be_in_the_operator(built):
    layer = Norm()
    manager = built(reads=None, order=["vendor:small", "vendor:large"])
    compiled_call(manager.bind(OP, layer))
    assert manager.failures.noted() == []


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_a_copy_can_be_traced_when_the_layer_itself_is_gone(manager, impl, order):
    vendors = [impl(vendor, op=OP, run=doubled, reads=READS, mutates=frozenset()) for vendor in ("a", "b")]
    here, layer = manager(*vendors, policy=SelectionPolicy(prefer="vendor:a", **order)), Norm()
    function, _ = step(here, layer)
    twin = copy.deepcopy(layer)
    del layer, _
    assert function.site.obj is None
    graph = torch.compile(lambda x: function(twin, x), backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        assert torch.equal(graph(torch.ones(5, 8)), doubled(twin, torch.ones(5, 8)))
