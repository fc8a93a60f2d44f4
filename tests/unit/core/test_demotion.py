# SPDX-License-Identifier: Apache-2.0
"""Three failures in a row, over all sites, demote an implementation for one operator and dtype."""

from __future__ import annotations

import logging

import pytest

from fl_dispatch import NotSupported, OpExecutionError, SelectionPolicy

SAFE = frozenset()


@pytest.fixture
def kernel(failing):
    return failing(answer="acme")


@pytest.fixture
def one(manager, impl, kernel):
    return manager(impl("acme", run=kernel, mutates=SAFE, priority=110), impl("other", mutates=SAFE))


def demoted(one):
    return [(d["operator"], d["impl_id"], d["dtype"]) for d in one.failures.demotions()]


def test_three_failures_in_a_row_demote(one, kernel, layer, x):
    assert [one.call_op("silu_and_mul", layer, x) for _ in range(5)] == ["other"] * 5
    assert kernel.calls == 3
    assert demoted(one) == [("silu_and_mul", "vendor.acme", "float32")]


def test_failures_on_interleaved_sites_count_together(one, kernel, call, layer, make_layer, x):
    held, other_layer = one.resolve_op("silu_and_mul"), make_layer()
    site = one.bind("silu_and_mul", other_layer)
    held(layer, x)
    one.call_op("silu_and_mul", layer, x)
    assert call(site, other_layer, x) == "other"
    assert kernel.calls == 3
    assert held(layer, x) == one.call_op("silu_and_mul", layer, x) == site.fn(other_layer, x) == "other"
    assert kernel.calls == 3


def test_a_success_in_between_starts_the_count_anew(one, kernel, layer, x):
    for _ in range(4):
        kernel.failing = True
        assert [one.call_op("silu_and_mul", layer, x) for _ in range(2)] == ["other"] * 2
        kernel.failing = False
        assert one.call_op("silu_and_mul", layer, x) == "acme"
    assert demoted(one) == []


def test_a_success_on_another_site_starts_the_count_anew(one, kernel, layer, x):
    held = one.resolve_op("silu_and_mul")
    for _ in range(4):
        kernel.failing = True
        held(layer, x), held(layer, x)
        kernel.failing = False
        assert one.call_op("silu_and_mul", layer, x) == "acme"
    assert demoted(one) == []


def test_after_a_success_nothing_is_left_on_the_hot_path(one, kernel, layer, x):
    plain = one.bind("silu_and_mul", layer)
    before = plain.fn
    one.call_op("silu_and_mul", layer, x)
    assert plain.fn is not before
    kernel.failing = False
    assert plain.fn(layer, x) == "acme"
    assert plain.fn is before


def test_a_success_in_another_dtype_does_not_count(manager, impl, layer, x):
    def half_broken(obj, x):
        if str(x.dtype) == "torch.float16":
            raise RuntimeError("half broke")
        return "acme"

    one = manager(impl("acme", run=half_broken, mutates=SAFE, priority=110), impl("other", mutates=SAFE))
    for _ in range(3):
        assert one.call_op("silu_and_mul", layer, x.half()) == "other"
        assert one.call_op("silu_and_mul", layer, x) == "acme"
    assert demoted(one) == [("silu_and_mul", "vendor.acme", "float16")]


@pytest.mark.parametrize("declared", [{}, {"dtypes": {"float16", "float32"}}])
def test_other_dtypes_and_operators_go_on(manager, impl, failing, layer, x, declared):
    kernel = failing(answer="acme")
    impls = [impl("acme", run=kernel, mutates=SAFE, priority=110, **declared), impl("other", mutates=SAFE)]
    one = manager(*impls, impl("acme", op="gelu_and_mul", mutates=SAFE))
    for _ in range(3):
        one.call_op("silu_and_mul", layer, x)
    kernel.failing = False
    assert one.call_op("silu_and_mul", layer, x) == "other"
    assert one.call_op("silu_and_mul", layer, x.half()) == "acme"
    assert one.call_op("gelu_and_mul", layer, x) == "acme"


@pytest.mark.parametrize("undo", [lambda one: one.configure(policy=SelectionPolicy()), lambda one: one.reset()])
def test_a_policy_change_and_reset_undo_it(one, kernel, layer, x, undo):
    for _ in range(3):
        one.call_op("silu_and_mul", layer, x)
    kernel.failing = False
    assert one.call_op("silu_and_mul", layer, x) == "other"
    undo(one)
    assert one.call_op("silu_and_mul", layer, x) == "acme"
    assert demoted(one) == []


def test_it_is_said_once_and_shown_by_explain(one, layer, x, caplog):
    with caplog.at_level(logging.ERROR, logger="fl_dispatch"):
        for _ in range(6):
            one.call_op("silu_and_mul", layer, x)
    assert [record.getMessage() for record in caplog.records] == [
        "operator silu_and_mul: vendor.acme is demoted for float32 after repeated failures "
        "(last: RuntimeError: kernel launch went wrong); others serve it from now on"
    ]
    assert one.select("silu_and_mul").why == "first able in the order, by token vendor; demoted for float32"
    from fl_dispatch import DeviceFacts

    selection = one.select("silu_and_mul", facts_=DeviceFacts("cpu", None, "float32"))
    assert selection.chosen.vendor == "other"
    (passed,) = selection.passed_over
    assert passed.reason == "demoted for float32: it failed repeatedly; a policy change or reset() lifts this"


def test_not_supported_never_demotes(manager, impl, failing, layer, x):
    one = manager(impl("acme", run=failing(NotSupported("odd")), mutates=SAFE, priority=110), impl("other"))
    for _ in range(5):
        assert one.call_op("silu_and_mul", layer, x) == "other"
    assert demoted(one) == []


def test_the_last_able_one_is_never_demoted(manager, impl, failing, layer, x):
    kernel = failing(answer="acme")
    one = manager(impl("acme", run=kernel, mutates=SAFE), with_reference=False)
    for _ in range(5):
        with pytest.raises(OpExecutionError, match="no implementation is able"):
            one.call_op("silu_and_mul", layer, x)
    kernel.failing = False
    assert one.call_op("silu_and_mul", layer, x) == "acme"


def test_a_second_candidate_is_counted_and_passed_over_like_the_first(manager, impl, failing, layer, x):
    first, second = failing(), failing()
    one = manager(
        impl("a", run=first, mutates=SAFE, priority=120), impl("b", run=second, mutates=SAFE, priority=110), impl("c")
    )
    assert [one.call_op("silu_and_mul", layer, x) for _ in range(5)] == ["c"] * 5
    assert (first.calls, second.calls) == (3, 3)


def test_a_second_candidates_success_starts_its_count_anew(manager, impl, failing, layer, x):
    second = failing(answer="b")
    one = manager(
        impl("a", run=failing(NotSupported("odd")), priority=120),
        impl("b", run=second, mutates=SAFE, priority=110),
        impl("c"),
    )
    for _ in range(4):
        second.failing = True
        assert [one.call_op("silu_and_mul", layer, x) for _ in range(2)] == ["c"] * 2
        second.failing = False
        assert one.call_op("silu_and_mul", layer, x) == "b"
    assert demoted(one) == []


def test_a_site_whose_dtype_is_known_decides_anew(one, kernel, layer, make_layer, x):
    half, single = make_layer(), make_layer()
    half_site = one.bind("silu_and_mul", half, dtype="float16")
    single_site = one.bind("silu_and_mul", single, dtype="float32")
    for _ in range(3):
        one.call_op("silu_and_mul", layer, x)
    assert single_site.impl.vendor == "other"
    assert half_site.impl.vendor == "acme"


def test_a_demotion_also_holds_inside_a_context_that_is_open(one, kernel, layer, x):
    with one.policy_context(SelectionPolicy(prefer="vendor")):
        assert [one.call_op("silu_and_mul", layer, x) for _ in range(5)] == ["other"] * 5
    assert kernel.calls == 3
