# SPDX-License-Identifier: Apache-2.0
"""Laws of ``select``, for any set of implementations, any policy and any facts."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from fl_dispatch import BackendImplKind, DeviceFacts, OpImpl, SelectionPolicy, select
from fl_dispatch.policy import Token

OP = "silu_and_mul"
VENDORS = ("acme", "bolt", "core")
DTYPES = ("float16", "bfloat16", "float32")
DEVICES = ("cuda", "npu", "cpu")
ARCHS = ((7, 0), (8, 0), (9, 0), (10, 0))


def fn(obj, x):
    return x


@st.composite
def one_impl(draw, number):
    kind = draw(st.sampled_from([kind for kind in BackendImplKind if kind is not BackendImplKind.NATIVE]))
    return OpImpl(
        OP,
        f"impl{number}",
        kind,
        fn,
        vendor=draw(st.sampled_from(VENDORS)) if kind is BackendImplKind.VENDOR else None,
        priority=draw(st.none() | st.integers(0, 200)),
        dtypes=draw(st.none() | st.sets(st.sampled_from(DTYPES))),
        devices=draw(st.none() | st.sets(st.sampled_from(DEVICES))),
        min_arch=draw(st.none() | st.sampled_from(ARCHS)),
    )


@st.composite
def impls(draw):
    return [draw(one_impl(number)) for number in range(draw(st.integers(0, 6)))]


tokens = st.one_of(
    st.sampled_from(("flagos", "vendor", "reference")),
    st.sampled_from(VENDORS).map("vendor:{}".format),
    st.integers(0, 6).map("impl:impl{}".format),
)
orders = st.lists(tokens, min_size=1, max_size=4).map(tuple)


@st.composite
def policies(draw):
    denied = draw(st.sets(st.sampled_from(VENDORS)))
    allowed = draw(st.none() | st.sets(st.sampled_from(VENDORS)).map(lambda names: names - denied))
    per_op = draw(st.dictionaries(st.sampled_from((OP, "rms_norm")), orders))
    return SelectionPolicy(draw(orders), per_op, denied, allowed, draw(st.booleans()))


facts = st.builds(
    DeviceFacts,
    st.none() | st.sampled_from(DEVICES),
    st.none() | st.sampled_from(ARCHS),
    st.none() | st.sampled_from(DTYPES),
)
rejections = st.dictionaries(st.integers(0, 6).map("impl{}".format), st.just("not available"))


@given(impls(), policies(), facts, rejections)
def test_the_chosen_one_is_accepted_and_never_rejected(impls, policy, facts, rejected):
    selection = select(OP, impls, policy, facts, rejected)
    verdicts = {candidate.impl.impl_id: candidate.accepted for candidate in selection.candidates}
    for usable in selection.usable:
        assert verdicts[usable.impl_id]
        assert usable.impl_id not in rejected
    assert (selection.chosen is None) == (selection.problem is not None)


@given(impls(), policies(), facts, rejections, st.randoms())
def test_the_order_of_registration_does_not_matter(impls, policy, facts, rejected, random):
    shuffled = list(impls)
    random.shuffle(shuffled)
    assert select(OP, impls, policy, facts, rejected) == select(OP, shuffled, policy, facts, rejected)


@given(impls(), policies(), facts, rejections)
def test_every_implementation_is_a_candidate_once_with_a_reason(impls, policy, facts, rejected):
    selection = select(OP, impls, policy, facts, rejected)
    assert sorted(c.impl.impl_id for c in selection.candidates) == sorted(i.impl_id for i in impls)
    assert all(candidate.reason for candidate in selection.candidates)
    assert all(impl.impl_id in selection.describe() for impl in impls)


@given(impls(), policies(), facts, rejections, st.sampled_from(VENDORS))
def test_a_denied_vendor_never_wins(impls, policy, facts, rejected, vendor):
    denied = dataclasses.replace(policy, deny_vendors=policy.deny_vendors | {vendor}, allow_vendors=None)
    selection = select(OP, impls, denied, facts, rejected)
    assert all(usable.vendor not in denied.deny_vendors for usable in selection.usable)
    for candidate in selection.candidates:
        if candidate.impl.vendor == vendor:
            assert candidate.reason == f"vendor {vendor!r} is denied (deny_vendors)"


@given(impls(), policies(), facts, rejections)
def test_only_allowed_vendors_win(impls, policy, facts, rejected):
    if policy.allow_vendors is not None:
        for usable in select(OP, impls, policy, facts, rejected).usable:
            assert usable.vendor is None or usable.vendor in policy.allow_vendors


@given(impls(), policies(), facts, rejections)
def test_strict_gives_one_that_the_first_token_matches_or_nothing(impls, policy, facts, rejected):
    strict = dataclasses.replace(policy, strict=True)
    selection = select(OP, impls, strict, facts, rejected)
    assert len(selection.usable) <= 1
    first = strict.order(OP)[0]
    assert all(first.matches(usable) for usable in selection.usable)


@given(impls(), policies(), facts, rejections)
def test_what_strict_chooses_is_what_is_chosen_without(impls, policy, facts, rejected):
    strict = select(OP, impls, dataclasses.replace(policy, strict=True), facts, rejected).chosen
    if strict is not None:
        assert select(OP, impls, dataclasses.replace(policy, strict=False), facts, rejected).chosen is strict


@given(impls(), policies(), facts, rejections, one_impl(99))
def test_adding_an_unable_implementation_never_changes_the_choice(impls, policy, facts, rejected, more):
    before = select(OP, impls, policy, facts, rejected)
    after = select(OP, [*impls, more], policy, facts, {**rejected, more.impl_id: "not available"})
    assert after.usable == before.usable
    assert (after.problem is None) == (before.problem is None)


@given(impls(), policies(), facts, rejections)
def test_no_accepted_one_of_an_earlier_token_is_passed_over(impls, policy, facts, rejected):
    selection = select(OP, impls, policy, facts, rejected)
    assert not any(candidate.accepted for candidate in selection.passed_over if selection.chosen is not None)
    if selection.chosen is not None:
        order = policy.order(OP)

        def rank(impl):
            return next(index for index, token in enumerate(order) if token.matches(impl))

        accepted = [c.impl for c in selection.candidates if c.accepted]
        assert rank(selection.chosen) == min(rank(impl) for impl in accepted)


@given(policies())
def test_an_order_holds_each_token_once_and_ends_with_the_default(policy):
    texts = [token.text for token in policy.order(OP)]
    assert len(texts) == len(set(texts))
    assert {"flagos", "vendor", "reference"} <= set(texts)
    assert texts[0] == (policy.per_op.get(OP) or policy.prefer)[0]
    assert [Token.parse(text).text for text in texts] == texts
