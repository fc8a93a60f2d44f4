# SPDX-License-Identifier: Apache-2.0
"""Orders by the number of tokens of a call."""

from __future__ import annotations

import pickle

import pytest
import torch

from fl_dispatch import (
    ConfigError,
    OpArgumentError,
    OpExecutionError,
    Report,
    SelectionError,
    SelectionPolicy,
    UnknownOperatorError,
    load_config,
)
from fl_dispatch.ops.spec import OpSpec

OP = "silu_and_mul"


def policy(buckets, **more):
    return SelectionPolicy(by_tokens={OP: buckets}, **more)


SMALL_LARGE = policy({2: "vendor:small", "more": "vendor:large"})


def rows(tokens):
    return torch.ones(tokens, 8)


def _of_the_layer(answer):
    return lambda obj: answer


@pytest.fixture
def two(manager, impl):
    """A manager with two vendors, one for calls of up to two tokens."""
    return lambda wishes=SMALL_LARGE, **declared: manager(impl("small", **declared), impl("large"), policy=wishes)


# -- the policy


def test_buckets_are_sorted_and_what_is_above_all_bounds_has_one_too():
    wishes = policy({16: "vendor", 4: ["flagos", "native"]})
    assert wishes.by_tokens[OP] == ((4, ("flagos", "native")), (16, ("vendor",)), (None, ()))


def test_what_a_bucket_does_not_name_follows_as_in_per_op_and_prefer():
    wishes = policy({2: "native", "more": "impl:x"}, per_op={OP: ("vendor",)}, prefer="reference")
    orders = {bound: [token.text for token in part.order(OP)] for bound, part in wishes.buckets(OP)}
    assert orders == {
        2: ["native", "vendor", "reference", "flagos"],
        None: ["impl:x", "vendor", "reference", "flagos"],
    }


def test_other_operators_have_no_buckets():
    assert SMALL_LARGE.buckets("rms_norm") == ()
    assert SMALL_LARGE.for_tokens("rms_norm", 1) is SMALL_LARGE


def test_it_survives_pickling_and_compares_by_content():
    assert pickle.loads(pickle.dumps(SMALL_LARGE)) == SMALL_LARGE
    assert policy({3: "vendor:small", "more": "vendor:large"}) != SMALL_LARGE
    assert hash(SMALL_LARGE) == hash(policy({2: ("vendor:small",), "more": ["vendor:large"]}))


@pytest.mark.parametrize(
    ("buckets", "message"),
    [
        ({"more": "vendor"}, "needs at least one number of tokens"),
        ({0: "vendor"}, "0 is no number of tokens; use a whole number from 1, or more"),
        ({True: "vendor"}, "True is no number of tokens"),
        ({"16": "vendor"}, "'16' is no number of tokens"),
        ({16: "vendr"}, "unknown selection token 'vendr'"),
        ("vendor", "are a mapping such as {16: vendor, more: flagos}"),
    ],
)
def test_malformed_buckets_are_refused(buckets, message):
    with pytest.raises(ConfigError) as caught:
        policy(buckets)
    assert message in str(caught.value)


def test_an_unknown_operator_is_refused(manager):
    with pytest.raises(
        UnknownOperatorError, match=r"by_tokens names unknown operator 'rmsnorm'; did you mean 'rms_norm'"
    ):
        manager().configure(policy=SelectionPolicy(by_tokens={"rmsnorm": {1: "vendor"}}))


def test_an_unknown_implementation_is_refused(manager):
    wishes = policy({1: "impl:vendor.acne"})
    with pytest.raises(ConfigError, match=r"token 'impl:vendor.acne': no implementation"):
        manager().configure(policy=wishes)


# -- calls


@pytest.mark.parametrize(("tokens", "served"), [(0, "small"), (1, "small"), (2, "small"), (3, "large"), (99, "large")])
def test_a_call_is_served_by_the_part_for_its_tokens(two, layer, tokens, served):
    site = two().bind(OP, layer)
    assert site.fn(layer, rows(tokens)) == served
    assert two().call_op(OP, layer, rows(tokens)) == served
    assert two().resolve_op(OP)(layer, rows(tokens)) == served


def test_a_part_checks_its_implementation_and_goes_on_in_its_own_order(two, layer):
    site = two(policy({2: ["vendor:small", "vendor:large"]}), supports=lambda obj, x: "never").bind(OP, layer)
    assert site.fn(layer, rows(1)) == "large"


def test_a_failure_is_judged_by_the_part_that_served(manager, impl, failing, layer, call):
    culprit = failing()
    small = impl("small", run=culprit, mutates=frozenset())
    built = manager(small, impl("large"), policy=policy({2: ["vendor:small", "reference"], "more": "vendor:large"}))
    site = built.bind(OP, layer)
    x = rows(2)  # the bound itself
    assert torch.equal(call(site, layer, x), built.registry.spec(OP).reference(layer, x))
    assert call(site, layer, rows(3)) == "large"


def test_a_failure_that_may_not_be_passed_on_names_the_one_that_failed(manager, impl, failing, layer):
    built = manager(impl("small", run=failing()), impl("large"), policy=SMALL_LARGE)
    with pytest.raises(OpExecutionError, match=r"implementation 'vendor.small' failed"):
        built.call_op(OP, layer, x=rows(1))


def test_an_input_without_tokens_is_the_callers_mistake(two, layer):
    with pytest.raises(OpArgumentError, match=r"called with \(Layer, float32\[\]@cpu\): .* x is \[\]"):
        two().call_op(OP, layer, torch.tensor(1.0))


def test_an_operator_without_an_input_is_refused_and_no_site_is_changed(manager, impl, layer):
    here = manager(impl("a"), impl("b"), policy=SelectionPolicy(prefer="vendor:a"))
    here.registry.define(OpSpec("no_input", lambda obj: None, "An operator of a layer alone."))
    for vendor in ("a", "b"):
        here.registry.register(impl(vendor, op="no_input", fn=_of_the_layer(vendor)))
    first, second = here.bind(OP, layer), here.bind("no_input", layer)
    with pytest.raises(ConfigError, match="operator 'no_input' has no input whose tokens could be counted"):
        here.configure(
            policy=SelectionPolicy(prefer="vendor:b", by_tokens={"no_input": {2: "vendor:a", "more": "vendor:b"}})
        )
    assert (first.fn(layer, rows(1)), second.fn(layer), second.parts) == ("a", "a", ())


def test_three_failures_demote_in_every_part(manager, impl, failing, layer, call):
    small = impl("small", run=failing(), mutates=frozenset())
    built = manager(small, impl("large"), policy=policy({2: ["vendor:small", "vendor:large"]}))
    site = built.bind(OP, layer, dtype="float32")
    assert [call(site, layer, rows(1)) for _ in range(4)] == ["large"] * 4
    assert {part.impl.impl_id for part in site.leaves()} == {"vendor.large"}


def test_strict_holds_for_each_part(manager, impl, layer):
    built = manager(impl("small"), policy=policy({2: "vendor:small", "more": "vendor:large"}, strict=True))
    with pytest.raises(SelectionError, match="the wanted token 'vendor:large' matches no registered implementation"):
        built.bind(OP, layer)


def test_a_policy_change_moves_between_parts_and_none(two, layer):
    built = two()
    site = built.bind(OP, layer)
    built.configure(policy=SelectionPolicy(prefer="vendor:large"))
    assert site.parts == ()
    assert site.fn(layer, rows(1)) == "large"
    built.configure(policy=SMALL_LARGE)
    assert site.fn(layer, rows(1)) == "small"


def test_parts_that_would_all_run_the_same_are_one(two, layer):
    site = two(policy({2: "vendor:large", "more": "vendor:large"})).bind(OP, layer)
    assert site.parts == ()
    assert site.impl.impl_id == "vendor.large"


def test_a_policy_context_decides_by_tokens_too(two, layer):
    built = two(SelectionPolicy(prefer="reference"))
    with built.policy_context(SMALL_LARGE):
        assert [built.call_op(OP, layer, rows(n)) for n in (1, 3)] == ["small", "large"]


def test_native_in_one_part_keeps_the_layer_bound_and_calls_the_frameworks_method(manager, impl, layer):
    wishes = policy({2: "native", "more": "vendor"})
    site = manager(impl("large"), policy=wishes).bind(OP, layer, native=lambda obj, x: "own")
    assert not site.is_native
    assert [site.fn(layer, rows(n)) for n in (2, 3)] == ["own", "large"]


def test_native_in_every_part_leaves_the_layer(manager, impl, layer):
    here = manager(impl("large"), policy=policy({2: ["native", "reference"], "more": "native"}))
    site = here.bind(OP, layer, native=lambda obj, x: "own")
    assert (len(site.parts), site.is_native) == (2, True)
    assert here.sites() == []  # its layer is the framework's


# -- what is shown


def test_the_report_has_a_row_for_each_part(two, layer):
    built = two()
    built.watch(calls=True)
    site = built.bind(OP, layer, label="SiluAndMul")
    for tokens in (1, 2, 3):
        site.fn(layer, rows(tokens))
    found = Report(built, "test 1", load_config("X_", {}, vendors=())).rows()
    assert {(row["layer_class"], row["implementation"], row["calls"]) for row in found} == {
        ("SiluAndMul, up to 2 tokens", "vendor.small", 2),
        ("SiluAndMul, more tokens", "vendor.large", 1),
    }


def test_the_reports_rows_go_from_few_tokens_to_many(manager, impl, layer):
    orders = {1024: "vendor.small", 16: "vendor.large", 64: "vendor.large", "more": "vendor.small"}
    built = manager(impl("small"), impl("large"), policy=policy({k: f"impl:{v}" for k, v in orders.items()}))
    built.bind(OP, layer, label="SiluAndMul")
    labels = [row["layer_class"] for row in Report(built, "test 1", load_config("X_", {}, vendors=())).rows()]
    assert labels == [f"SiluAndMul, {which} tokens" for which in ("up to 16", "up to 64", "up to 1024", "more")]


def test_counts_survive_a_change_of_the_policy(two, layer):
    built = two()
    built.watch(calls=True)
    site = built.bind(OP, layer, label="SiluAndMul")
    site.fn(layer, rows(1))
    built.configure(policy=SelectionPolicy(prefer="reference"))
    site.fn(layer, rows(1))
    built.configure(policy=SMALL_LARGE)
    site.fn(layer, rows(3))
    found = Report(built, "test 1", load_config("X_", {}, vendors=())).rows()
    total = {}
    for row in found:
        total[row["implementation"]] = total.get(row["implementation"], 0) + row["calls"]
    assert total == {"vendor.small": 1, "reference": 1, "vendor.large": 1}


def test_parts_that_would_run_the_same_but_go_on_with_others_stay_apart(two, layer):
    built = two(policy({2: ["vendor:small", "reference"], "more": ["vendor:small", "vendor:large"]}))
    site = built.bind(OP, layer)
    assert [(bound, part.impl.impl_id) for bound, part in site.parts] == [(2, "vendor.small"), (None, "vendor.small")]
    same = two(policy({2: "vendor:small", "more": "vendor:small"})).bind(OP, layer)
    assert same.parts == ()


def test_a_selection_is_that_for_the_tokens(two):
    built = two()
    assert built.select(OP, tokens=2).chosen.impl_id == "vendor.small"
    assert built.select(OP).chosen.impl_id == "vendor.large"


# -- settings


@pytest.fixture
def load(tmp_path):
    def read(text, **environ):
        (tmp_path / "fl.yaml").write_text(text)
        variables = {"X_CONFIG": str(tmp_path / "fl.yaml"), **{f"X_{key}": value for key, value in environ.items()}}
        return load_config("X_", variables, vendors=("acme",))

    return read


FILE = "per_op: {rms_norm: {16: [vendor, native], 1024: native, more: 'impl:x'}, silu_and_mul: vendor}"


def test_a_file_gives_orders_by_tokens_in_per_op(load):
    config = load(FILE)
    assert config.policy.by_tokens == {
        "rms_norm": ((16, ("vendor", "native")), (1024, ("native",)), (None, ("impl:x",)))
    }
    assert config.policy.per_op == {"silu_and_mul": ("vendor",)}
    shown = {"16": ["vendor", "native"], "1024": ["native"], "more": ["impl:x"]}
    assert config.as_dict()["per_op"]["value"] == {"rms_norm": shown, "silu_and_mul": ["vendor"]}


def test_the_environment_replaces_the_orders_of_an_operator_it_names(load):
    config = load(FILE, PER_OP="rms_norm=reference")
    assert config.policy.by_tokens == {}
    assert config.policy.per_op == {"rms_norm": ("reference",), "silu_and_mul": ("vendor",)}


def test_a_mistake_in_a_file_is_named_with_its_place(load, tmp_path):
    with pytest.raises(ConfigError) as caught:
        load("per_op: {rms_norm: {16: vendr}}")
    assert f"{tmp_path}/fl.yaml: per_op[rms_norm][16]: unknown selection token 'vendr'" in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        load("per_op: {rms_norm: {up to 16: vendor}}")
    assert f"{tmp_path}/fl.yaml: per_op[rms_norm]: 'up to 16' is no number of tokens" in str(caught.value)
