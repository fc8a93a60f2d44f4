# SPDX-License-Identifier: Apache-2.0
"""What a graph holds: traceable implementations as they are, others as operators of ``torch.library``, and who may not in."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from fl_dispatch import SelectionError, compile_refusal, compiled_call
from fl_dispatch.callables import guarded
from fl_dispatch.opaque import opaque_form
from fl_dispatch.ops import load_spec

NORM, ROTARY = load_spec("rms_norm"), load_spec("rotary_embedding")
NORM_FIELDS = frozenset({"weight", "variance_epsilon"})


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Norm(torch.nn.Module):
    """A layer that calls what a graph is to hold."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 2.0, 8), requires_grad=False)
        self.variance_epsilon = 1e-6


def untraceable(run):
    """As kernels are: something in there that Dynamo cannot trace."""

    def function(obj, *args):
        with open("/dev/null", "rb") as stream:
            stream.read()
        return run(obj, *args)

    return function


def in_place(obj, x, residual=None):
    out = NORM.reference(obj, x, residual)
    if residual is None:
        return out
    x.copy_(out[0])
    residual.copy_(out[1])
    return x, residual


def half_in_place(obj, x, residual=None):
    out = NORM.reference(obj, x, residual)
    if residual is None:
        return out
    residual.copy_(out[1])
    return out[0], residual


@pytest.mark.parametrize(
    ("run", "mutates"),
    [
        (NORM.reference, frozenset()),
        (in_place, frozenset({"x", "residual"})),
        (in_place, None),
        (half_in_place, frozenset({"residual"})),
        (NORM.reference, frozenset({"x", "residual"})),  # declared more than it does
    ],
)
def test_an_opaque_norm_computes_the_same_in_one_graph(impl, manager, run, mutates):
    layer = Norm()
    vendor = impl(op="rms_norm", run=untraceable(run), reads=NORM_FIELDS, mutates=mutates)
    call = compiled_call(manager(vendor).bind("rms_norm", layer))
    counter = CompileCounter()

    @torch.compile(backend=counter, fullgraph=True, dynamic=True)
    def compiled(x, residual):
        return call(layer, call(layer, x), residual)

    with torch.inference_mode():
        for tokens in (3, 5, 9):
            x, residual = torch.randn(tokens, 8), torch.randn(tokens, 8)
            wanted = NORM.reference(layer, NORM.reference(layer, x), residual)
            got = compiled(x.clone(), residual.clone())
            assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
    assert counter.frame_count == 1


def test_an_opaque_norm_without_a_residual_leaves_its_input_as_it_was(impl, manager):
    layer, x = Norm(), torch.randn(3, 8)
    vendor = impl(op="rms_norm", run=untraceable(in_place), reads=NORM_FIELDS, mutates=frozenset({"x", "residual"}))
    call = compiled_call(manager(vendor).bind("rms_norm", layer))
    given = x.clone()
    with torch.no_grad():
        out = torch.compile(lambda x: call(layer, x), backend="aot_eager", fullgraph=True)(given)
    assert torch.equal(out, NORM.reference(layer, x))
    assert torch.equal(given, x)


@pytest.mark.parametrize("inplace", [True, False])
def test_an_opaque_rotary_writes_only_where_it_may(impl, manager, inplace):
    def rotary(obj, query, key, cos, sin, position_ids, rotary_interleaved=False, inplace=True):
        q, k = untraceable(ROTARY.reference)(obj, query, key, cos, sin, position_ids, rotary_interleaved)
        if not inplace:
            return q, k
        return query.copy_(q), k

    cache = torch.randn(16, 4)
    layer = type("Rope", (), {"cos_sin_cache": cache, "head_size": 4, "rotary_dim": 4, "is_neox_style": True})()
    vendor = impl(op="rotary_embedding", fn=rotary, reads=frozenset(), mutates=frozenset({"query"}))
    call = compiled_call(manager(vendor).bind("rotary_embedding", layer))
    query, key, positions = torch.randn(3, 2, 4), torch.randn(3, 1, 4), torch.tensor([1, 2, 3])
    cos, sin = cache.chunk(2, -1)
    wanted = ROTARY.reference(layer, query, key, cos, sin, positions)

    compiled = torch.compile(
        lambda q, k: call(layer, q, k, cos, sin, positions, False, inplace), backend="aot_eager", fullgraph=True
    )
    given = query.clone(), key.clone()
    got = compiled(*given)
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
    assert torch.equal(given[0], wanted[0] if inplace else query)
    assert torch.equal(given[1], key)


@pytest.mark.parametrize(
    "run",
    [
        lambda obj, x: x[..., :4],
        lambda obj, x: x.flatten()[:8].view(2, 4),  # contiguous, and all the same the input's memory
        lambda obj, x: x[..., :4].t().clone(memory_format=torch.contiguous_format).t(),  # its own, with other strides
    ],
    ids=["part", "contiguous part", "strides"],
)
def test_what_an_operator_returns_is_contiguous_and_no_part_of_its_input(impl, manager, run):
    vendor = impl(run=untraceable(run), reads=frozenset(), mutates=frozenset())
    call = compiled_call(manager(vendor).bind("silu_and_mul", Norm()))
    x = torch.randn(2, 8)
    out = torch.compile(lambda x: call(None, x), backend="aot_eager", fullgraph=True)(x)
    assert torch.equal(out, run(None, x))
    assert out.is_contiguous()
    assert out.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_a_traceable_implementation_goes_in_as_it_is(impl, manager):
    vendor = impl(traceable=True)
    assert compiled_call(manager(vendor).bind("silu_and_mul", Norm())) is vendor.fn


def test_declared_limits_are_checked_in_the_graph(impl, manager):
    vendor = impl(traceable=True, run=lambda obj, x: x[..., :4] * 0, dtypes={"float16"}, mutates=frozenset())
    layer = Norm()
    call = compiled_call(manager(vendor).bind("silu_and_mul", layer))
    compiled = torch.compile(lambda x: call(layer, x), backend="eager", fullgraph=True)
    assert compiled(torch.ones(2, 8)).any()
    assert not compiled(torch.ones(2, 8, dtype=torch.float16)).any()


def test_one_that_does_not_say_what_it_reads_is_refused_with_what_to_declare(impl):
    reason = compile_refusal(impl(op="rms_norm"), NORM, Norm())
    assert reason is not None
    assert "does not declare which fields of obj it reads" in reason
    assert "declare reads=frozenset({...}) out of: weight, variance_epsilon" in reason


def test_a_field_that_no_schema_can_hold_is_refused(impl):
    layer = Norm()
    layer.variance_epsilon = {"no": "number"}
    reason = compile_refusal(impl(op="rms_norm", reads=NORM_FIELDS), NORM, layer)
    assert (
        reason == "cannot be in a compiled graph: field 'variance_epsilon' is dict, which no operator schema can hold"
    )


def test_a_traced_site_passes_over_what_cannot_be_in_a_graph_with_the_reason(impl, manager):
    layer = Norm()
    manager = manager(impl(op="rms_norm"))
    site = manager.bind("rms_norm", layer, traced=True)
    assert site.impl is not None
    assert site.impl.impl_id == "reference"
    assert site.selection is not None
    (passed,) = site.selection.passed_over
    assert "does not declare which fields" in passed.reason


def test_reading_what_the_specification_does_not_have_is_named(impl):
    vendor = impl(op="rms_norm", run=lambda obj, x, residual: obj.hidden_size, reads=NORM_FIELDS)
    call = opaque_form(vendor, NORM, Norm())
    with pytest.raises(AttributeError, match=r"obj.hidden_size was read, which is no field of rms_norm"):
        call(Norm(), torch.ones(2, 8))


def test_an_undecided_site_has_no_compiled_form(manager):
    from fl_dispatch import Site

    with pytest.raises(SelectionError, match="has not decided yet"):
        compiled_call(Site(manager(), "silu_and_mul"))


def test_a_bound_site_that_may_be_compiled_can_be_traced_whatever_it_runs(impl, manager):
    layer = Norm()
    vendor = impl(op="rms_norm", run=untraceable(NORM.reference), reads=NORM_FIELDS, mutates=frozenset())
    here = manager(vendor)
    site = here.bind("rms_norm", layer)
    assert site.fn is vendor.fn
    here.configure(compiled=True)
    counter = CompileCounter()
    x = torch.randn(4, 8)

    @torch.compile(backend=counter, fullgraph=True)
    def compiled(x):
        fn = site.fn
        try:
            return fn(layer, x)
        except Exception as error:  # noqa: BLE001  (as adapters guard their calls)
            return site.recover(error, layer, x)

    for _ in range(3):
        assert torch.equal(compiled(x), NORM.reference(layer, x))
    assert (counter.frame_count, site.graphs) == (1, 1)


def test_a_traced_site_whose_next_candidate_cannot_be_looked_into_can_be_traced(impl, manager):
    narrow = impl("narrow", run=lambda obj, x: x[..., :4], traceable=True, mutates=frozenset(), dtypes={"float16"})
    opaque = impl("opaque", run=untraceable(lambda obj, x: x[..., 4:] * 2), mutates=frozenset(), reads=frozenset())
    here, layer = manager(narrow, opaque), Norm()
    site = here.bind("silu_and_mul", layer, traced=True)
    assert site.impl is narrow
    function = guarded(site, here.registry.spec("silu_and_mul"))
    compiled = torch.compile(lambda x: function(layer, x), backend="aot_eager", fullgraph=True)
    x = torch.randn(3, 8)
    assert torch.equal(compiled(x), x[..., 4:] * 2)


def test_where_layers_are_compiled_what_cannot_be_in_a_graph_is_passed_over(impl, manager):
    layer = Norm()
    closed = impl(op="rms_norm", run=untraceable(lambda obj, x, residual=None: x * 0), mutates=frozenset())
    here = manager(closed)
    site = here.bind("rms_norm", layer)
    assert site.impl is closed
    here.configure(compiled=True)
    assert site.impl.impl_id == "reference"
    (passed,) = site.selection.passed_over
    assert passed.reason.startswith(
        "does not declare which fields of obj it reads, so it cannot be in a compiled graph"
    )
    here.configure(compiled=False)
    assert site.fn is closed.fn


def test_what_may_not_be_captured_is_not_chosen_where_graphs_are_captured(impl, manager):
    eager = impl(op="rms_norm", run=NORM.reference, capture_safe=False)
    here = manager(eager)
    site = here.bind("rms_norm", Norm())
    assert site.impl is eager
    here.configure(captured=True)
    assert site.impl.impl_id == "reference"
    (passed,) = site.selection.passed_over
    assert passed.reason == "does not declare capture_safe=True, and device graphs are captured here"
    assert "in device graphs" in site.selection.describe()
    here.configure(captured=False)
    assert site.impl is eager


@pytest.mark.parametrize(("declared", "chosen"), [("traceable", "reference"), ("capture_safe", "vendor.acme")])
def test_only_the_declaration_about_captures_counts_where_graphs_are_captured(impl, manager, declared, chosen):
    here = manager(impl(**{declared: True}))
    here.configure(captured=True)
    assert here.select("silu_and_mul").chosen.impl_id == chosen
