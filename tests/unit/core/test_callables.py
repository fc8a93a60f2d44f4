# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import inspect

import pytest

from fl_dispatch import OpArgumentError, OpSpec, SelectionPolicy

SAFE = frozenset()


def checked_impls(impl):
    return [
        impl(
            "a",
            op="rms_norm",
            dtypes={"float16"},
            supports=lambda obj, x, residual=None: residual is None,
            priority=110,
        ),
        impl("b", op="rms_norm"),
    ]


def test_a_checked_function_keeps_the_standard_signature(manager, impl):
    one = manager(*checked_impls(impl))
    fn = one.bind("rms_norm").fn
    assert list(inspect.signature(fn).parameters) == ["obj", "x", "residual"]
    assert inspect.signature(fn).parameters["residual"].default is None


@pytest.mark.parametrize("by_name", [False, True])
def test_a_check_sees_arguments_by_place_and_by_name(manager, impl, layer, x, by_name):
    one, half = manager(*checked_impls(impl)), x.half()

    def call(x, **more):
        return one.call_op("rms_norm", layer, x=x, **more) if by_name else one.call_op("rms_norm", layer, x, **more)

    assert call(half) == "a"
    assert call(x) == "b"
    assert call(half, residual=half) == "b"


def test_a_predicate_may_answer_with_anything_true(manager, impl, layer, x):
    one = manager(impl("a", supports=lambda obj, x: 1, priority=110), impl("b"))
    assert one.call_op("silu_and_mul", layer, x) == "a"
    assert one.failures.noted() == []


def test_an_argument_without_a_dtype_is_the_callers_mistake(manager, impl, layer):
    with pytest.raises(OpArgumentError, match="x must be a tensor, not int"):
        manager(impl("a", dtypes={"float16"})).call_op("silu_and_mul", layer, 5)


def test_an_operator_may_name_its_parameters_as_it_likes(manager, impl, layer, x):
    def reference(fn, site, error=1, able=2):
        return ("reference", error, able)

    def other(fn, site, error=1, able=2):
        return ("other", error, able)

    one = manager()
    one.registry.define(OpSpec("odd", reference))
    one.registry.register(impl(op="odd", fn=other, dtypes={"float32"}))
    assert one.resolve_op("odd")(layer, x, able=3) == ("other", 1, 3)


def test_defaults_may_be_any_value(manager, impl, layer, x):
    marker = object()

    def reference(obj, x, mode=marker):
        return mode

    one = manager()
    one.registry.define(OpSpec("with_default", reference))
    one.registry.register(impl(op="with_default", fn=reference))
    assert one.resolve_op("with_default")(layer, x) is marker


def test_a_site_that_is_forgotten_frees_everything(manager, impl, layer):
    import gc
    import weakref

    one = manager(*checked_impls(impl))
    site = weakref.ref(one.resolve_op("rms_norm").site)
    gc.collect()
    assert site() is None


def test_checks_follow_a_change_of_policy(manager, impl, layer, x):
    one = manager(*checked_impls(impl))
    held = one.resolve_op("rms_norm")
    assert held(layer, x.half()) == "a"
    one.configure(policy=SelectionPolicy(prefer="vendor:b"))
    assert held(layer, x.half()) == "b"
    assert held.site.fn is held.site.impl.fn
