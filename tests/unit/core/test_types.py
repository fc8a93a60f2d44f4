# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch

from fl_dispatch import BackendImplKind, BackendPriority, OpImpl


def fn(obj, x):
    return x


@pytest.mark.parametrize(
    ("kind", "priority"),
    [(BackendImplKind.DEFAULT, 150), (BackendImplKind.VENDOR, 100), (BackendImplKind.REFERENCE, 50)],
)
def test_priority_defaults_to_that_of_the_kind(kind, priority):
    assert OpImpl("silu_and_mul", "some", kind, fn, vendor="acme").priority == priority == BackendPriority[kind.name]


def test_availability_defaults_to_the_attribute_of_the_function():
    def marked(obj, x):
        return x

    def probe():
        return True

    marked._is_available = probe
    assert OpImpl("silu_and_mul", "some", BackendImplKind.REFERENCE, marked).available is probe


def test_dtypes_may_be_given_as_torch_dtypes():
    impl = OpImpl("silu_and_mul", "some", BackendImplKind.REFERENCE, fn, dtypes={torch.float16, "bfloat16"})
    assert impl.dtypes == {"float16", "bfloat16"}


def test_declarations_are_frozen_copies():
    mutates = {"x"}
    impl = OpImpl("silu_and_mul", "some", BackendImplKind.REFERENCE, fn, mutates=mutates)
    mutates.add("y")
    assert impl.mutates == frozenset({"x"})


def test_an_implementation_is_hashable_also_with_honours():
    impl = OpImpl("rms_norm", "some", BackendImplKind.REFERENCE, fn, honours={"cast_x_before_out_mul": {True}})
    assert impl in {impl}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "vendor"}, "kind must be a BackendImplKind, not 'vendor'"),
        ({"fn": 5}, "fn must be callable, not 5"),
        ({"vendor": None}, "kind=VENDOR needs vendor=NAME"),
        ({"dtypes": "float16"}, "dtypes must be a collection of names, not the string 'float16'"),
        ({"mutates": "x"}, "mutates must be a collection of names, not the string 'x'"),
        ({"min_arch": 9.0}, r"min_arch must be \(major, minor\), not 9.0"),
    ],
)
def test_a_malformed_field_is_named(fields, message):
    given = {"kind": BackendImplKind.VENDOR, "fn": fn, "vendor": "acme", **fields}
    with pytest.raises(TypeError, match=rf"OpImpl\(silu_and_mul, vendor.acme\): {message}"):
        OpImpl("silu_and_mul", "vendor.acme", **given)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"priority": "100"}, "priority must be an int, not '100'"),
        ({"impl_id": 5}, "impl_id must be a non-empty string, not 5"),
        ({"vendor": "a,b"}, "vendor must be a name without blanks, commas"),
        ({"available": True}, "available must be callable, not True"),
        ({"supports": "x"}, "supports must be callable, not 'x'"),
        ({"mutates": True}, "mutates must be a collection of names, not True"),
        ({"honours": None}, "honours must map fields to collections of values, not None"),
        ({"honours": {"cast_x_before_out_mul": True}}, "honours must map fields to collections of values"),
    ],
)
def test_malformed_declaration_is_refused_where_it_is_made(declared, message):
    fields = {"op_name": "silu_and_mul", "impl_id": "vendor.a", "kind": BackendImplKind.VENDOR, "vendor": "a"}
    with pytest.raises(TypeError, match=message):
        OpImpl(**{**fields, "fn": lambda obj, x: x, **declared})


def test_async_function_is_no_implementation():
    async def fn(obj, x):
        return x

    with pytest.raises(TypeError, match="fn is an async function"):
        OpImpl("silu_and_mul", "vendor.a", BackendImplKind.VENDOR, fn, vendor="a")
