# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import pickle

import pytest

from fl_dispatch import BackendImplKind, ConfigError, SelectionPolicy
from fl_dispatch.policy import Token


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("flagos", Token("flagos", kind=BackendImplKind.DEFAULT)),
        ("vendor", Token("vendor", kind=BackendImplKind.VENDOR)),
        ("vendor:acme", Token("vendor:acme", kind=BackendImplKind.VENDOR, vendor="acme")),
        (" reference ", Token("reference", kind=BackendImplKind.REFERENCE)),
        ("native", Token("native", kind=BackendImplKind.NATIVE)),
        ("impl:vendor.acme", Token("impl:vendor.acme", impl_id="vendor.acme")),
        ("impl:a:b", Token("impl:a:b", impl_id="a:b")),
    ],
)
def test_token_forms(text, token):
    assert Token.parse(text) == token


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("flagoss", "did you mean 'flagos'?"),
        ("vendr:acme", "did you mean 'vendor'?"),
        ("vendor:", "did you mean 'vendor'?"),
        ("impl:", "did you mean 'impl'?"),
        ("", "known: flagos, impl, native, reference, vendor"),
        ("Reference", "did you mean 'reference'?"),
    ],
)
def test_an_unknown_token_is_named_with_the_valid_forms_and_a_hint(text, hint):
    with pytest.raises(ConfigError) as caught:
        Token.parse(text)
    assert f"unknown selection token {text!r}" in str(caught.value)
    assert "flagos, vendor, vendor:NAME, reference, native and impl:ID" in str(caught.value)
    assert str(caught.value).endswith(hint)


def test_token_matches_by_kind_vendor_or_id(impl):
    one = impl("acme")
    assert [Token.parse(text).matches(one) for text in ("vendor", "vendor:acme", "impl:vendor.acme")] == [True] * 3
    assert [Token.parse(text).matches(one) for text in ("flagos", "vendor:other", "impl:acme")] == [False] * 3


def test_prefer_may_be_one_token():
    assert SelectionPolicy(prefer="vendor").prefer == ("vendor",)


def test_order_is_per_op_then_prefer_then_default_each_once():
    policy = SelectionPolicy(prefer="vendor", per_op={"rms_norm": ("impl:x", "reference")})
    assert [t.text for t in policy.order("rms_norm")] == ["impl:x", "reference", "vendor", "flagos"]
    assert [t.text for t in policy.order("silu_and_mul")] == ["vendor", "flagos", "reference"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prefer": ()}, "prefer: an order needs at least one token"),
        ({"prefer": (1,)}, "prefer: a token must be a string, not 1"),
        ({"per_op": {"rms_norm": ()}}, r"per_op\['rms_norm'\]: an order needs at least one token"),
        ({"deny_vendors": "acme"}, "deny_vendors must be a collection of vendor names, not the string 'acme'"),
        ({"allow_vendors": "acme"}, "allow_vendors must be a collection of vendor names"),
        ({"deny_vendors": {"b", "a"}, "allow_vendors": {"a", "b"}}, "both allowed and denied: a, b; name each in one"),
    ],
)
def test_a_malformed_policy_is_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        SelectionPolicy(**fields)


def test_per_op_cannot_be_changed_afterwards():
    policy = SelectionPolicy(per_op={"rms_norm": "vendor"})
    with pytest.raises(TypeError):
        policy.per_op["rms_norm"] = ("reference",)
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.strict = True


def test_equal_policies_are_equal_hash_alike_and_survive_pickling():
    one = SelectionPolicy(per_op={"rms_norm": "vendor", "silu_and_mul": "reference"}, deny_vendors=["b", "a"])
    two = SelectionPolicy(per_op={"silu_and_mul": "reference", "rms_norm": "vendor"}, deny_vendors=["a", "b"])
    assert one == two
    assert hash(one) == hash(two)
    assert pickle.loads(pickle.dumps(one)) == one
    assert one != SelectionPolicy()
    assert one != "a policy"


def test_dataclasses_replace_works():
    policy = SelectionPolicy(per_op={"rms_norm": "vendor"})
    assert dataclasses.replace(policy, strict=True).per_op == {"rms_norm": ("vendor",)}


def test_vendor_verdicts():
    assert SelectionPolicy(deny_vendors={"acme"}).vendor_verdict("acme") == "vendor 'acme' is denied (deny_vendors)"
    assert SelectionPolicy(allow_vendors={"acme"}).vendor_verdict("other") == "vendor 'other' is not in allow_vendors"
    assert SelectionPolicy(allow_vendors={"acme"}).vendor_verdict("acme") is None
