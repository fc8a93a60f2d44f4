# SPDX-License-Identifier: Apache-2.0
"""Policies are values: they travel, compare and hash, and hold what they were given."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_dispatch import ConfigError, SelectionPolicy
from fl_dispatch.policy import Token

NAMES = st.text("abcdefghijklmnop_-.0123456789", min_size=1, max_size=8)
TOKENS = st.one_of(
    st.sampled_from(("flagos", "vendor", "reference")), NAMES.map("vendor:{}".format), NAMES.map("impl:{}".format)
)
ORDERS = st.lists(TOKENS, min_size=1, max_size=4)


@st.composite
def policies(draw):
    denied = draw(st.frozensets(NAMES, max_size=3))
    allowed = draw(st.none() | st.frozensets(NAMES, max_size=3).map(lambda names: names - denied))
    return SelectionPolicy(
        prefer=tuple(draw(ORDERS)),
        per_op=draw(st.dictionaries(st.sampled_from(("rms_norm", "silu_and_mul", "gelu_and_mul")), ORDERS)),
        deny_vendors=denied,
        allow_vendors=allowed,
        strict=draw(st.booleans()),
    )


@given(policies())
def test_copies_are_equal_and_hash_alike(policy):
    for other in (
        pickle.loads(pickle.dumps(policy)),
        copy.copy(policy),
        copy.deepcopy(policy),
        dataclasses.replace(policy),
    ):
        assert other == policy
        assert hash(other) == hash(policy)


@given(policies())
def test_the_plain_form_rebuilds_it_also_after_json(policy):
    assert SelectionPolicy(**policy.as_dict()) == policy
    assert SelectionPolicy(**json.loads(json.dumps(policy.as_dict()))) == policy


@given(policies(), policies())
def test_equal_means_equal_in_every_field(one, two):
    assert (one == two) == (one.as_dict() == two.as_dict())
    if one == two:
        assert hash(one) == hash(two)


@given(policies())
def test_a_change_of_strict_makes_another_policy(policy):
    assert dataclasses.replace(policy, strict=not policy.strict) != policy


@given(TOKENS)
def test_tokens_keep_their_text(text):
    assert Token.parse(text).text == text
    assert Token.parse(f"  {text} ") == Token.parse(text)


@given(st.text())
def test_any_other_text_is_a_configuration_error(text):
    with contextlib.suppress(ConfigError):
        assert Token.parse(text).text == text.strip()


@given(st.frozensets(NAMES, min_size=1, max_size=3), st.frozensets(NAMES, max_size=3))
def test_a_vendor_is_never_both_allowed_and_denied(denied, more):
    with pytest.raises(ConfigError, match="both allowed and denied"):
        SelectionPolicy(deny_vendors=denied, allow_vendors=denied | more)
