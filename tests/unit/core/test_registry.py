# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import functools

import pytest

from fl_dispatch import (
    Backend,
    BackendImplKind,
    BackendPriority,
    OpImpl,
    OpRegistry,
    OpSpec,
    RegistrationError,
    UnknownOperatorError,
)


class MyChipBackend(Backend):
    """As vendors write it; rotary_embedding is left out."""

    @property
    def name(self):
        return "my_chip"

    def is_available(self):
        return True

    def silu_and_mul(self, obj, x):
        return "my_chip silu"

    def rms_norm(self, obj, x, residual=None):
        return "my_chip norm"


def bind_is_available(fn, is_available_fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs)

    wrapper._is_available = is_available_fn
    return wrapper


def vendor_impl(backend, op_name):
    return OpImpl(
        op_name=op_name,
        impl_id="vendor.my_chip",
        kind=BackendImplKind.VENDOR,
        fn=bind_is_available(getattr(backend, op_name), backend.is_available),
        vendor="my_chip",
        priority=BackendPriority.VENDOR,
    )


def refused(registry, impl):
    with pytest.raises(RegistrationError) as caught:
        registry.register(impl)
    assert registry.get(impl.op_name) == ()
    return str(caught.value)


def test_wrapped_bound_methods_are_accepted_and_bring_their_probe():
    registry, backend = OpRegistry(), MyChipBackend()
    registry.register_many([vendor_impl(backend, "silu_and_mul"), vendor_impl(backend, "rms_norm")])
    (norm,) = registry.get("rms_norm")
    assert norm.fn(None, None) == "my_chip norm"
    assert norm.available() is True


def test_a_wrapped_bound_method_with_another_signature_is_refused(impl):
    class Wrong(MyChipBackend):
        def rms_norm(self, obj, hidden, residual=None):
            return hidden

    message = refused(OpRegistry(), vendor_impl(Wrong(), "rms_norm"))
    assert "parameter 2 is named 'hidden', not 'x'" in message


def test_a_method_that_was_not_written_is_refused_alone():
    registry, backend = OpRegistry(), MyChipBackend()
    with pytest.raises(RegistrationError, match=r"MyChipBackend has no method rotary_embedding\(\); implement it"):
        registry.register_many([vendor_impl(backend, op) for op in ("rotary_embedding", "silu_and_mul", "rms_norm")])
    assert sorted(registry.snapshot()) == ["rms_norm", "silu_and_mul"]


def test_a_backend_has_no_other_invented_attributes():
    with pytest.raises(AttributeError, match="'MyChipBackend' object has no attribute 'siluandmul'"):
        _ = MyChipBackend().siluandmul


def test_calling_a_method_that_was_not_written_says_so():
    with pytest.raises(AttributeError, match=r"has no method rotary_embedding\(\)"):
        MyChipBackend().rotary_embedding(None)


def test_a_duplicate_names_both_sources(impl):
    registry = OpRegistry()
    with registry.registering("acme-kernels 1.0"):
        registry.register(impl())
    with registry.registering("acme-more 2.0"), pytest.raises(RegistrationError) as caught:
        registry.register(impl())
    assert "OpImpl(silu_and_mul, vendor.acme): id already registered by acme-kernels 1.0" in str(caught.value)
    assert "now again by acme-more 2.0" in str(caught.value)
    assert "ids are unique per operator, for example" in str(caught.value)


def test_one_id_may_serve_several_operators(impl):
    registry = OpRegistry()
    registry.register_many([impl(op="silu_and_mul"), impl(op="gelu_and_mul")])
    assert len(registry.snapshot()) == 2


def mismatches():
    def too_few(obj):
        pass

    def renamed(obj, hidden, residual=None):
        pass

    def no_default(obj, x, residual):
        pass

    def extra(obj, x, residual=None, scale=...):
        pass

    def needs_extra(obj, x, residual=None, *, scale):
        pass

    def by_place_only(obj, x, /, residual=None):
        pass

    def nothing():
        pass

    return [
        (too_few, "parameter 'x' is missing"),
        (renamed, "parameter 2 is named 'hidden', not 'x'"),
        (no_default, "parameter 'residual' has no default"),
        (needs_extra, "extra parameter 'scale' has no default"),
        (by_place_only, "parameter 'x' cannot be passed by name"),
        (nothing, "parameter 'obj' is missing"),
    ]


@pytest.mark.parametrize(("fn", "problem"), mismatches(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_signature_mismatch_names_the_problem_and_both_signatures(impl, fn, problem):
    message = refused(OpRegistry(), impl(op="rms_norm", fn=fn))
    assert f"OpImpl(rms_norm, vendor.acme): {problem}" in message
    assert "the implementation has rms_norm(" in message
    assert "the standard is rms_norm(obj: " in message


def accepted():
    def first_name_is_free(layer, x, residual=None):
        pass

    def first_by_place_only(obj, /, x, residual=None):
        pass

    def extra_with_default(obj, x, residual=None, scale=1.0):
        pass

    def swallows_more(obj, x, residual=None, **kwargs):
        pass

    def generic(*args, **kwargs):
        pass

    return [first_name_is_free, first_by_place_only, extra_with_default, swallows_more, generic]


@pytest.mark.parametrize("fn", accepted(), ids=lambda fn: fn.__name__)
def test_harmless_differences_of_the_signature_are_accepted(impl, fn):
    registry = OpRegistry()
    registry.register(impl(op="rms_norm", fn=fn))
    assert len(registry.get("rms_norm")) == 1


def test_an_unknown_operator_is_refused_with_the_closest_name(impl):
    with pytest.raises(UnknownOperatorError, match=r"unknown operator 'rmsnorm'; did you mean 'rms_norm'\?"):
        OpRegistry().register(impl(op="rmsnorm", fn=lambda obj, x: x))


def test_register_many_keeps_the_good_ones_and_names_every_refused_one(impl):
    registry = OpRegistry()
    with pytest.raises(RegistrationError) as caught:
        registry.register_many([impl(op="nope", fn=lambda obj, x: x), impl("a"), impl("a"), impl("b")])
    assert [one.impl_id for one in registry.get("silu_and_mul")] == ["vendor.a", "vendor.b"]
    assert "unknown operator 'nope'" in str(caught.value)
    assert "OpImpl(silu_and_mul, vendor.a): id already registered" in str(caught.value)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"dtypes": {"fp16"}}, "dtypes names 'fp16', which torch does not have"),
        ({"mutates": {"y"}}, "mutates names 'y', which rms_norm does not have"),
        (
            {"mutates": {"obj"}},
            "mutates names 'obj'; callers of rms_norm expect that only residual, x may be written to",
        ),
        ({"reads": {"wieght"}}, "reads names 'wieght', which rms_norm does not have; did you mean 'weight'?"),
        ({"honours": {"cast_before_out_mul": {True}}}, "did you mean 'cast_x_before_out_mul'?"),
    ],
)
def test_a_declaration_that_could_never_match_is_refused(impl, declared, message):
    assert message in refused(OpRegistry(), impl(op="rms_norm", **declared))


def test_writing_to_inputs_that_callers_keep_is_refused(impl):
    assert "callers of silu_and_mul expect that nothing may be written to" in refused(OpRegistry(), impl(mutates={"x"}))


def test_a_vendor_may_only_register_under_its_own_name(impl):
    registry = OpRegistry()
    with registry.registering("acme-kernels 1.0", vendor="acme"):
        registry.register(impl("acme"))
        with pytest.raises(RegistrationError, match="vendor is 'other' but the entry point is named 'acme'"):
            registry.register(impl("other"))


def test_the_source_is_noted(impl):
    registry = OpRegistry()
    with registry.registering("acme-kernels 1.0"):
        registry.register(impl())
    assert registry.get("silu_and_mul")[0].registered_by == "acme-kernels 1.0"


def test_an_operator_can_be_defined_once(impl):
    registry = OpRegistry(standard=False)
    spec = OpSpec("double", lambda obj, x: x * 2)
    registry.define(spec)
    assert registry.op_names() == ("double",)
    assert registry.spec("double") is spec
    with pytest.raises(RegistrationError, match="operator 'double' is already defined"):
        registry.define(spec)


def test_a_standard_operator_cannot_be_redefined():
    with pytest.raises(RegistrationError, match="operator 'rms_norm' is already defined"):
        OpRegistry().define(OpSpec("rms_norm", lambda obj, x: x))


def test_listeners_hear_of_each_registration(impl):
    heard = []
    registry = OpRegistry()
    registry.on_change(heard.append)
    registry.register(impl())
    assert heard == ["silu_and_mul"]


def test_a_registration_that_a_listener_refuses_is_undone(impl):
    def refuse(op_name):
        raise ValueError("frozen")

    registry = OpRegistry()
    registry.on_change(refuse)
    with pytest.raises(ValueError, match="frozen"):
        registry.register(impl())
    assert registry.get("silu_and_mul") == ()
