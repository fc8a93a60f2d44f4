# SPDX-License-Identifier: Apache-2.0
"""The token ``native``: the framework's own method as a candidate."""

from __future__ import annotations

import pytest

from fl_dispatch import BackendImplKind, OpImpl, RegistrationError, SelectionError, SelectionPolicy
from fl_dispatch.native import ABSENT, native_impl


def own(obj, x):
    return "the framework's own"


def test_a_layer_whose_framework_method_is_preferred_says_so(manager, layer):
    site = manager(policy=SelectionPolicy(prefer="native")).bind("silu_and_mul", layer, native=own)
    assert site.is_native
    assert site.selection.why == "first able in the order, by token native"


def test_it_is_no_candidate_where_the_policy_does_not_name_it(manager, layer):
    site = manager().bind("silu_and_mul", layer, native=own)
    assert not site.is_native
    assert [c.impl.impl_id for c in site.selection.candidates] == ["reference"]


def test_it_takes_over_calls_that_the_one_before_it_refuses(manager, impl, layer, x):
    limited = impl("acme", supports=lambda obj, x: "never")
    site = manager(limited, policy=SelectionPolicy(prefer=("vendor", "native"))).bind("silu_and_mul", layer, native=own)
    assert not site.is_native
    assert site.fn(layer, x) == "the framework's own"


def test_it_can_be_preferred_for_one_operator(manager, layer):
    built = manager(policy=SelectionPolicy(per_op={"silu_and_mul": ("native",)}))
    assert built.bind("silu_and_mul", layer, native=own).is_native
    assert not built.bind("rms_norm", layer, native=own).is_native


def test_outside_of_a_framework_it_is_passed_over_with_the_reason(manager, layer, x):
    built = manager(policy=SelectionPolicy(prefer="native"))
    built.call_op("silu_and_mul", layer, x)
    (passed,) = built.shared_site("silu_and_mul").selection.passed_over
    assert (passed.impl.impl_id, passed.reason) == ("native", ABSENT)


def test_outside_of_a_framework_strict_refuses_it_and_says_why(manager, layer, x):
    built = manager(policy=SelectionPolicy(prefer="native", strict=True))
    with pytest.raises(SelectionError, match="the wanted token 'native' has no able implementation") as caught:
        built.call_op("silu_and_mul", layer, x)
    assert ABSENT in str(caught.value)


def test_strict_is_content_with_it_where_there_is_one(manager, layer):
    built = manager(policy=SelectionPolicy(prefer="native", strict=True))
    assert built.bind("silu_and_mul", layer, native=own).is_native


def test_a_failure_of_it_is_not_retried(manager, layer, x):
    def failing(obj, x):
        raise RuntimeError("of the framework")

    site = manager(policy=SelectionPolicy(prefer="native")).bind("silu_and_mul", layer, native=failing)
    with pytest.raises(Exception, match="implementation 'native' failed with RuntimeError: of the framework"):
        site.recover(RuntimeError("of the framework"), layer, x)


def test_nobody_registers_it(manager):
    with pytest.raises(RegistrationError, match="'native' is the framework's own method, which nobody registers"):
        manager().registry.register(OpImpl("silu_and_mul", "mine", BackendImplKind.NATIVE, own))


def test_a_candidate_for_explaining_cannot_be_called(layer, x):
    with pytest.raises(SelectionError, match="only a layer of a framework"):
        native_impl("silu_and_mul").fn(layer, x)
