# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from fl_dispatch import BackendImplKind, DeviceFacts, OpImpl, SelectionError, SelectionPolicy, select

CUDA = DeviceFacts("cuda", (8, 0), "float16")


def reference():
    return OpImpl("silu_and_mul", "reference", BackendImplKind.REFERENCE, lambda obj, x: x)


def flagos():
    return OpImpl("silu_and_mul", "flagos", BackendImplKind.DEFAULT, lambda obj, x: x)


def reasons(selection):
    return {candidate.impl.impl_id: candidate.reason for candidate in selection.candidates}


def test_default_order_is_flagos_vendor_reference(impl):
    selection = select("silu_and_mul", [reference(), impl("acme"), flagos()], SelectionPolicy())
    assert [c.impl.impl_id for c in selection.candidates] == ["flagos", "vendor.acme", "reference"]
    assert selection.chosen.impl_id == "flagos"
    assert selection.why == "first able in the order, by token flagos"
    assert reasons(selection)["reference"] == "able, would be next"


def test_higher_priority_goes_first_inside_a_group_then_the_id(impl):
    impls = [impl("b"), impl("a"), impl("c", priority=120)]
    selection = select("silu_and_mul", impls, SelectionPolicy())
    assert [c.impl.impl_id for c in selection.candidates] == ["vendor.c", "vendor.a", "vendor.b"]


def test_a_named_vendor_goes_before_the_others(impl):
    selection = select("silu_and_mul", [impl("a"), impl("b")], SelectionPolicy(prefer="vendor:b"))
    assert selection.chosen.vendor == "b"
    assert selection.why == "first able in the order, by token vendor:b"


def test_per_op_goes_before_prefer(impl):
    policy = SelectionPolicy(prefer="reference", per_op={"silu_and_mul": "impl:vendor.acme"})
    assert select("silu_and_mul", [impl("acme"), reference()], policy).chosen.vendor == "acme"


@pytest.mark.parametrize(
    ("declared", "policy", "rejected", "reason"),
    [
        ({}, {"deny_vendors": {"acme"}}, {}, "vendor 'acme' is denied (deny_vendors)"),
        ({}, {"allow_vendors": {"other"}}, {}, "vendor 'acme' is not in allow_vendors"),
        ({}, {}, {"vendor.acme": "acme_sdk is not installed"}, "acme_sdk is not installed"),
        ({"devices": {"npu", "xpu"}}, {}, {}, "needs device npu or xpu, this is cuda"),
        ({"min_arch": (9, 0)}, {}, {}, "needs architecture 9.0 or newer, this is 8.0"),
        ({"dtypes": {"bfloat16", "float32"}}, {}, {}, "takes bfloat16, float32, not float16"),
    ],
    ids=["denied", "not allowed", "unavailable", "device", "arch", "dtype"],
)
def test_each_kind_of_rejection_says_why(impl, declared, policy, rejected, reason):
    selection = select("silu_and_mul", [impl(**declared), reference()], SelectionPolicy(**policy), CUDA, rejected)
    assert reasons(selection)["vendor.acme"] == reason
    assert selection.chosen.impl_id == "reference"
    assert [(c.impl.impl_id, c.reason) for c in selection.passed_over] == [("vendor.acme", reason)]


def test_a_denial_is_told_before_any_other_reason(impl):
    selection = select(
        "silu_and_mul", [impl(devices={"npu"})], SelectionPolicy(deny_vendors={"acme"}), CUDA, {"vendor.acme": "gone"}
    )
    assert reasons(selection)["vendor.acme"] == "vendor 'acme' is denied (deny_vendors)"


def test_what_is_not_known_excludes_nothing(impl):
    limited = impl(devices={"npu"}, min_arch=(9, 0), dtypes={"float16"})
    assert select("silu_and_mul", [limited], SelectionPolicy()).chosen is limited


def test_a_cpu_has_no_architecture(impl):
    selection = select("silu_and_mul", [impl(min_arch=(7, 0)), reference()], SelectionPolicy(), DeviceFacts("cpu"))
    assert reasons(selection)["vendor.acme"] == "needs architecture 7.0 or newer, this is cpu"


def test_architecture_is_compared_as_numbers(impl):
    one = impl(min_arch=(9, 0))
    assert select("silu_and_mul", [one], SelectionPolicy(), DeviceFacts("cuda", (10, 0))).chosen is one


def test_passed_over_lists_only_what_was_more_wanted(impl):
    impls = [impl("a"), flagos(), reference()]
    selection = select("silu_and_mul", impls, SelectionPolicy(), CUDA, {"flagos": "switched off"})
    assert [c.impl.impl_id for c in selection.passed_over] == ["flagos"]


def test_remarks_are_added_to_the_reason_of_an_accepted_one(impl):
    selection = select("silu_and_mul", [impl()], SelectionPolicy(), None, None, {"vendor.acme": "demoted for float16"})
    assert selection.why == "first able in the order, by token vendor; demoted for float16"


def test_nothing_able_raises_with_every_reason_and_a_hint(impl):
    selection = select("silu_and_mul", [impl(devices={"npu"})], SelectionPolicy(), CUDA)
    assert selection.chosen is None
    with pytest.raises(SelectionError) as caught:
        selection.require()
    assert str(caught.value) == (
        "operator 'silu_and_mul' (cuda 8.0, float16; order flagos > vendor > reference): no implementation is able\n"
        "   x vendor.acme              needs device npu, this is cuda\n"
        "  hint: `fl-dispatch doctor` shows what is broken and how to mend it"
    )


def test_nothing_registered_says_so():
    with pytest.raises(SelectionError, match="no implementation is registered"):
        select("silu_and_mul", [], SelectionPolicy()).require()


def test_describe_marks_the_chosen_the_able_and_the_rejected(impl):
    impls = [flagos(), impl("acme"), reference()]
    lines = select("silu_and_mul", impls, SelectionPolicy(), None, {"flagos": "off"}).describe().splitlines()
    assert [line[:5] for line in lines[1:]] == ["   x ", "  -> ", "     "]
    assert "any device, any dtype" in lines[0]
    assert lines[0].endswith(": vendor.acme")


def test_as_dict_holds_the_decision_and_every_candidate(impl):
    plain = select("silu_and_mul", [impl("acme"), reference()], SelectionPolicy(), CUDA).as_dict()
    assert plain["chosen"] == "vendor.acme"
    assert plain["problem"] is None
    assert [c["impl_id"] for c in plain["candidates"]] == ["vendor.acme", "reference"]


class TestStrict:
    def test_chooses_the_first_token(self, impl):
        policy = SelectionPolicy(prefer="vendor", strict=True)
        selection = select("silu_and_mul", [impl(), reference()], policy)
        assert selection.chosen.vendor == "acme"
        assert selection.usable == (selection.chosen,)
        assert reasons(selection)["reference"] == "able, but strict never falls back"

    def test_refuses_when_the_first_token_is_not_able(self, impl):
        policy = SelectionPolicy(prefer="vendor", strict=True)
        selection = select("silu_and_mul", [impl(), reference()], policy, None, {"vendor.acme": "no SDK"})
        assert selection.chosen is None
        with pytest.raises(SelectionError) as caught:
            selection.require()
        assert "strict, and the wanted token 'vendor' has no able implementation" in str(caught.value)
        assert "no SDK" in str(caught.value)
        assert str(caught.value).endswith("hint: turn strict off, or prefer a token that is able")

    def test_refuses_when_the_first_token_matches_nothing(self):
        selection = select("silu_and_mul", [reference()], SelectionPolicy(prefer="vendor:acme", strict=True))
        assert selection.problem == "strict, and the wanted token 'vendor:acme' matches no registered implementation"

    def test_takes_the_next_of_the_same_token(self, impl):
        policy = SelectionPolicy(prefer="vendor", strict=True)
        selection = select("silu_and_mul", [impl("a"), impl("b")], policy, None, {"vendor.a": "no SDK"})
        assert selection.chosen.vendor == "b"

    def test_looks_at_the_operators_own_order_first(self, impl):
        policy = SelectionPolicy(prefer="vendor", per_op={"silu_and_mul": "reference"}, strict=True)
        assert select("silu_and_mul", [impl(), reference()], policy).chosen.impl_id == "reference"
