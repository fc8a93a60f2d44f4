# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gc
import weakref

import pytest
import torch

from fl_dispatch import (
    ConfigError,
    DeviceFacts,
    FrozenSelectionError,
    OpManager,
    OpRegistry,
    OpSpec,
    SelectionError,
    SelectionPolicy,
    UnknownOperatorError,
)

PREFER_B = SelectionPolicy(prefer="vendor:b")


@pytest.fixture
def one(manager, impl):
    return manager(impl("a"), impl("b"), impl("a", op="gelu_and_mul"), impl("b", op="gelu_and_mul"))


def test_a_bound_site_calls_the_implementation_itself(one, layer):
    site = one.bind("silu_and_mul", layer)
    assert site.fn is site.impl.fn


def test_call_op_resolve_op_and_bound_sites_agree(one, layer, x):
    assert one.call_op("silu_and_mul", layer, x) == "a"
    assert one.resolve_op("silu_and_mul")(layer, x) == "a"
    assert one.bind("silu_and_mul", layer).fn(layer, x) == "a"


def test_a_held_function_has_the_standard_signature(one, layer, x):
    held = one.resolve_op("rms_norm")
    import inspect

    assert list(inspect.signature(held).parameters) == ["obj", "x", "residual"]
    assert inspect.signature(held).parameters["residual"].default is None
    assert held.__name__ == "rms_norm"
    assert torch.equal(held(layer, x), held(obj=layer, x=x))
    assert len(held(layer, x, residual=x)) == 2


def test_a_policy_change_rewrites_bound_sites_and_held_functions(one, layer, x):
    site, held = one.bind("silu_and_mul", layer), one.resolve_op("silu_and_mul")
    one.call_op("silu_and_mul", layer, x)
    one.configure(policy=PREFER_B)
    assert site.fn(layer, x) == held(layer, x) == one.call_op("silu_and_mul", layer, x) == "b"
    assert site.selection.why == "first able in the order, by token vendor:b"


def test_a_registration_after_binding_rewrites(one, impl, layer, x):
    site, held = one.bind("silu_and_mul", layer), one.resolve_op("silu_and_mul")
    one.call_op("silu_and_mul", layer, x)
    one.registry.register(impl("c", priority=200))
    assert site.fn(layer, x) == held(layer, x) == one.call_op("silu_and_mul", layer, x) == "c"


def test_per_op_order_is_for_that_operator_only(one, layer, x):
    one.configure(policy=SelectionPolicy(prefer="vendor:a", per_op={"gelu_and_mul": "vendor:b"}))
    assert one.call_op("silu_and_mul", layer, x) == "a"
    assert one.call_op("gelu_and_mul", layer, x) == "b"


def test_a_dead_site_is_forgotten(one, layer):
    site = one.bind("silu_and_mul", layer)
    kept = weakref.ref(site)
    del site
    gc.collect()
    assert kept() is None
    assert one.sites() == []


def test_the_manager_does_not_keep_layers_alive(one, make_layer):
    layer = make_layer()
    site = one.bind("silu_and_mul", layer)
    assert site.obj is layer
    del layer
    gc.collect()
    assert site.obj is None


def test_sites_are_those_that_have_decided_in_a_stable_order(one, layer, make_layer, x):
    assert one.sites() == []
    held = [one.bind(op, layer, label=label) for op, label in (("silu_and_mul", "B"), ("rms_norm", "Z"))]
    held.append(one.bind("silu_and_mul", layer, label="A"))
    assert [(site.op_name, site.label) for site in one.sites()] == [
        ("rms_norm", "Z"), ("silu_and_mul", "A"), ("silu_and_mul", "B"),
    ]  # fmt: skip


def test_calls_before_a_change_are_kept_by_implementation(one, layer):
    site = one.bind("silu_and_mul", layer)
    site.calls = 7
    one.configure(policy=PREFER_B)
    assert (site.past_calls, site.calls) == ({"vendor.a": 7}, 0)
    site.calls = 2
    one.configure(policy=SelectionPolicy())
    assert site.past_calls == {"vendor.a": 7, "vendor.b": 2}
    site.calls = 4
    one.configure(policy=PREFER_B)
    assert site.past_calls == {"vendor.a": 11, "vendor.b": 2}


def test_calls_stay_where_a_change_does_not_concern_them(one, layer):
    site = one.bind("silu_and_mul", layer)
    site.calls = 7
    one.configure(policy=SelectionPolicy(per_op={"gelu_and_mul": "vendor:b"}))
    assert (site.past_calls, site.calls) == ({}, 7)


@pytest.mark.parametrize("use", ["bind", "resolve_op", "call_op", "select"])
def test_an_unknown_operator_is_named_with_the_closest(one, use):
    with pytest.raises(UnknownOperatorError, match=r"unknown operator 'silu_mul'; did you mean 'silu_and_mul'\?"):
        getattr(one, use)("silu_mul")


def test_an_unknown_operator_in_per_op_is_refused_and_nothing_changes(one, layer, x):
    with pytest.raises(
        UnknownOperatorError, match=r"per_op names unknown operator 'rmsnorm'; did you mean 'rms_norm'\?"
    ):
        one.configure(policy=SelectionPolicy(prefer="vendor:b", per_op={"rmsnorm": "vendor"}))
    assert one.call_op("silu_and_mul", layer, x) == "a"


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (
            SelectionPolicy(prefer="impl:vendor.aa"),
            "token 'impl:vendor.aa': no implementation of any operator has this id; did you mean 'vendor.a'? "
            "(a policy of `fl-dispatch tune` names what was installed where it was made)",
        ),
        (
            SelectionPolicy(per_op={"rms_norm": "impl:vendor.a"}),
            "token 'impl:vendor.a': no implementation of operator 'rms_norm' has this id; known: reference "
            "(a policy of `fl-dispatch tune` names what was installed where it was made)",
        ),
    ],
)
def test_an_unknown_implementation_id_is_refused(one, manager, impl, layer, x, policy, message):
    with pytest.raises(ConfigError) as caught:
        one.configure(policy=policy)
    assert str(caught.value) == message
    late = manager(impl("a"), impl("b"), policy=policy)
    for _ in range(2):
        with pytest.raises(ConfigError, match="no implementation of"):
            late.call_op("silu_and_mul", layer, x)


def test_a_change_that_leaves_a_site_with_nothing_changes_nothing(one, layer, x):
    site, other = one.bind("silu_and_mul", layer), one.bind("gelu_and_mul", layer)
    before = site.fn, other.fn, one.policy
    with pytest.raises(SelectionError, match="strict, and the wanted token 'flagos' matches no registered"):
        one.configure(policy=SelectionPolicy(prefer="flagos", strict=True))
    assert (site.fn, other.fn, one.policy) == before


def test_a_refused_change_keeps_demotions(manager, impl, failing, layer, x):
    one = manager(impl("a", run=failing(), mutates=frozenset(), priority=110), impl("b"))
    for _ in range(3):
        one.call_op("silu_and_mul", layer, x)
    with pytest.raises(SelectionError):
        one.configure(policy=SelectionPolicy(prefer="flagos", strict=True))
    assert len(one.failures.demotions()) == 1


@pytest.mark.parametrize("mode", ["captured", "compiled"])
def test_a_mode_stays_until_it_is_given_and_through_a_refused_change(manager, impl, layer, mode):
    one = manager(impl(op="rms_norm", capture_safe=False))
    site = one.bind("rms_norm", layer)
    one.configure(**{mode: True})
    one.configure(device_type="cpu")
    assert site.impl.impl_id == "reference"
    with pytest.raises(SelectionError):
        one.configure(policy=SelectionPolicy(prefer="flagos", strict=True), **{mode: False})
    one.configure(device_type="cpu")  # decides anew
    assert site.impl.impl_id == "reference"
    one.configure(**{mode: False})
    assert site.impl.vendor == "acme"


def test_strict_with_an_unable_backend_refuses_to_bind(manager, impl, layer):
    one = manager(
        impl("acme", available=lambda: "acme_sdk is not installed"),
        policy=SelectionPolicy(prefer="vendor", strict=True),
    )
    with pytest.raises(SelectionError, match="acme_sdk is not installed"):
        one.bind("silu_and_mul", layer)


def test_the_device_can_be_set_and_sites_follow(manager, impl, layer, x):
    one = manager(impl("npu", devices={"npu"}, priority=110), impl("cpu"))
    site = one.bind("silu_and_mul", layer)
    assert site.impl.vendor == "cpu"
    one.configure(device_type="npu")
    assert one.device_type == "npu"
    assert site.impl.vendor == "npu"


class TestLayers:
    def test_a_layer_outside_what_an_implementation_honours_gets_the_next(self, manager, impl, make_layer):
        one = manager(impl(op="rms_norm", honours={"cast_x_before_out_mul": {False}}))
        plain, casting = make_layer(), make_layer(cast_x_before_out_mul=True)
        assert one.bind("rms_norm", plain).impl.vendor == "acme"
        site = one.bind("rms_norm", casting)
        assert site.impl.impl_id == "reference"
        assert (
            site.selection.passed_over[0].reason == "honours cast_x_before_out_mul only as False, this layer has True"
        )

    def test_a_layer_that_only_wishes_is_served_with_a_remark(self, manager, impl, make_layer):
        one = manager(impl(op="rms_norm", honours={"cast_x_before_out_mul": {False}}))
        site = one.bind("rms_norm", make_layer(cast_x_before_out_mul=True, fl_wishes=("cast_x_before_out_mul",)))
        assert site.impl.vendor == "acme"
        assert site.selection.why.endswith("; honours cast_x_before_out_mul only as False, this layer has True")
        other = one.bind("rms_norm", make_layer(cast_x_before_out_mul=True, fl_wishes=("cast_x_to_weight_dtype",)))
        assert other.impl.impl_id == "reference"

    def test_a_remark_is_of_the_wishes_alone(self, manager, impl, make_layer):
        declared = {"cast_x_before_out_mul": {False}, "cast_x_to_weight_dtype": {False}}
        one = manager(impl(op="rms_norm", honours=declared))
        wishes = ("cast_x_before_out_mul", "cast_x_to_weight_dtype")
        site = one.bind("rms_norm", make_layer(cast_x_before_out_mul=True, fl_wishes=wishes))
        assert site.impl.vendor == "acme"
        assert "cast_x_to_weight_dtype" not in site.selection.why

    def test_a_layer_that_only_wishes_is_still_asked_about(self, manager, impl, make_layer):
        one = manager(impl(op="rms_norm", supports_layer=lambda obj: "hidden size 8 is too small"))
        site = one.bind("rms_norm", make_layer(fl_wishes=("cast_x_before_out_mul",)))
        assert site.impl.impl_id == "reference"

    def test_an_absent_field_counts_as_the_operators_default(self, manager, impl, layer):
        one = manager(impl(op="gemma_rms_norm", honours={"round_sum_before_norm": {True}}))
        assert one.bind("gemma_rms_norm", layer).impl.vendor == "acme"
        two = manager(impl(op="gemma_rms_norm", honours={"round_sum_before_norm": {False}}))
        assert two.bind("gemma_rms_norm", layer).impl.impl_id == "reference"

    @pytest.mark.parametrize(
        ("predicate", "reason"),
        [
            (lambda obj: "hidden size 8 is too small", "hidden size 8 is too small"),
            (lambda obj: False, "its supports_layer() predicate says no"),
            (lambda obj: obj.gone, "its supports_layer() predicate raised AttributeError: "),
        ],
    )
    def test_a_layer_predicate_is_asked_once_when_binding(self, manager, impl, layer, predicate, reason):
        site = manager(impl(op="rms_norm", supports_layer=predicate)).bind("rms_norm", layer)
        assert site.impl.impl_id == "reference"
        assert site.selection.passed_over[0].reason.startswith(reason)

    def test_what_binding_settled_is_not_checked_again(self, manager, impl, layer):
        asked = []
        one = manager(
            impl(
                dtypes={"float16"}, devices={"cpu"}, min_arch=None, supports_layer=lambda obj: asked.append(obj) or True
            )
        )
        site = one.bind("silu_and_mul", layer, device_type="cpu", dtype="float16")
        assert site.fn is site.impl.fn
        assert asked == [layer]

    def test_a_limit_that_binding_could_not_settle_is_checked(self, manager, impl, layer, x):
        one = manager(impl("a", dtypes={"float16"}, priority=110), impl("b"))
        site = one.bind("silu_and_mul", layer, device_type="cpu")
        assert site.fn is not site.impl.fn
        assert (site.fn(layer, x.half()), site.fn(layer, x)) == ("a", "b")

    def test_a_known_dtype_outside_the_limits_gets_the_next_when_binding(self, manager, impl, layer):
        one = manager(impl("a", dtypes={"float16"}, priority=110), impl("b"))
        site = one.bind("silu_and_mul", layer, dtype="float32")
        assert site.fn is site.impl.fn
        assert site.selection.passed_over[0].reason == "takes float16, not float32"


class TestAvailability:
    def test_a_probe_is_asked_once_for_all_operators(self, manager, impl, layer, x):
        asked = []

        def probe():
            asked.append(1)
            return True

        one = manager(impl(available=probe), impl(op="gelu_and_mul", available=probe))
        one.call_op("silu_and_mul", layer, x), one.call_op("gelu_and_mul", layer, x), one.select("silu_and_mul")
        assert len(asked) == 1

    def test_a_denied_vendors_probe_is_not_asked(self, manager, impl, layer, x):
        def probe():
            raise AssertionError("asked")

        one = manager(impl(available=probe), policy=SelectionPolicy(deny_vendors={"acme"}))
        assert (
            one.bind("silu_and_mul", layer).selection.passed_over[0].reason == "vendor 'acme' is denied (deny_vendors)"
        )

    def test_reset_asks_again(self, manager, impl, layer):
        answers = ["no SDK", True]
        one = manager(impl(available=lambda: answers.pop(0)))
        site = one.bind("silu_and_mul", layer)
        assert site.impl.impl_id == "reference"
        one.reset()
        assert site.impl.vendor == "acme"


class TestFreeze:
    def test_refuses_policy_device_reset_and_registration(self, one, impl, layer):
        one.bind("silu_and_mul", layer)
        held = one.bind("silu_and_mul", layer)
        one.freeze("a CUDA graph of 3 batch sizes")
        for what, change in [
            ("the policy", lambda: one.configure(policy=PREFER_B)),
            ("the policy", lambda: one.configure(device_type="cuda")),
            ("the selection", one.reset),
            ("the registry", lambda: one.registry.register(impl("c"))),
        ]:
            with pytest.raises(FrozenSelectionError) as caught:
                change()
            assert str(caught.value) == (
                f"{what} cannot change any more: a CUDA graph of 3 batch sizes holds the present selection "
                "and would go on running it; set it before start-up, or drop the graphs and call unfreeze()"
            )
        assert held.impl.vendor == "a"
        assert [i.impl_id for i in one.registry.get("silu_and_mul")] == ["reference", "vendor.a", "vendor.b"]

    def test_lets_new_layers_bind(self, one, layer):
        one.freeze("a graph")
        assert one.bind("silu_and_mul", layer).impl.vendor == "a"

    def test_unfreeze_allows_changes_again(self, one, layer, x):
        one.freeze("a graph")
        one.unfreeze()
        one.configure(policy=PREFER_B)
        assert one.call_op("silu_and_mul", layer, x) == "b"


class TestSelect:
    def test_changes_nothing(self, one, layer):
        site = one.bind("silu_and_mul", layer)
        assert one.select("silu_and_mul", policy=PREFER_B).chosen.vendor == "b"
        assert site.impl.vendor == "a"

    def test_takes_the_facts_it_is_given(self, manager, impl):
        one = manager(impl(dtypes={"float16"}, devices={"cuda"}, min_arch=(9, 0)))
        assert one.select("silu_and_mul", facts_=DeviceFacts("cuda", (9, 0), "float16")).chosen.vendor == "acme"
        assert one.select("silu_and_mul", facts_=DeviceFacts("cuda", (8, 0), "float16")).chosen.impl_id == "reference"


class TestPolicySource:
    def test_is_asked_when_first_needed(self):
        asked = []

        def source():
            asked.append(1)
            return PREFER_B

        one = OpManager(OpRegistry(), policy_source=source)
        assert asked == []
        assert one.policy is one.policy is PREFER_B
        assert asked == [1]

    def test_its_error_is_raised_on_every_use(self, monkeypatch, layer, x):
        monkeypatch.setattr("fl_dispatch.manager.discover", lambda registry, policy: ())

        def source():
            raise ConfigError("unknown environment variable FL_DISPATCH_PREFR")

        one = OpManager(policy_source=source)
        for _ in range(2):
            with pytest.raises(ConfigError, match="FL_DISPATCH_PREFR"):
                one.call_op("silu_and_mul", layer, x)


class TestOwnOperators:
    def test_can_be_bound_and_called_like_standard_ones(self, manager, impl, layer, x):
        one = manager()
        one.registry.define(OpSpec("double", lambda obj, x: x * 2))
        one.registry.register(impl(op="double"))
        assert one.call_op("double", layer, x) == one.resolve_op("double")(layer, x) == "acme"
        with one.policy_context(SelectionPolicy(per_op={"double": "vendor:acme"})):
            assert one.call_op("double", layer, x) == "acme"

    def test_without_an_input_have_no_dtype_to_check(self, manager, impl, layer):
        one = manager()
        one.registry.define(OpSpec("tell", lambda obj: None))
        one.registry.register(impl(op="tell", fn=lambda obj: "told", dtypes=frozenset({"float32"})))
        assert one.call_op("tell", layer) == one.bind("tell", layer).fn(layer) == "told"

    def test_of_a_vendor_are_known_once_vendors_were_discovered(self, monkeypatch, impl, layer, x):
        def discover(registry, policy, already=()):
            registry.define(OpSpec("double", lambda obj, x: x * 2))
            registry.register(impl(op="double"))
            return ()

        monkeypatch.setattr("fl_dispatch.manager.discover", discover)
        assert OpManager(policy=SelectionPolicy()).call_op("double", layer, x) == "acme"
        assert OpManager(policy=SelectionPolicy()).bind("double", layer).fn(layer, x) == "acme"


def test_a_vendor_that_asks_for_the_registry_while_it_registers_does_not_start_over(monkeypatch, impl, layer, x):
    calls = []

    def discover(registry, policy, already=()):
        calls.append(1)
        assert one.registry is registry
        registry.register(impl())
        return ()

    monkeypatch.setattr("fl_dispatch.manager.discover", discover)
    one = OpManager(policy=SelectionPolicy(), device_type="cpu")
    assert one.call_op("silu_and_mul", layer, x) == "acme"
    assert calls == [1]


def test_calls_of_layers_are_counted_once_that_is_asked_for_and_not_before(one, layer):
    site = one.bind("rms_norm", layer)
    shared = one.shared_site("rms_norm")
    x = torch.ones(1, 8)
    site.fn(layer, x)
    one.watch(calls=True)
    site.fn(layer, x)
    site.fn(layer, x, residual=x)
    one.call_op("rms_norm", layer, x)
    assert (site.calls, shared.calls) == (2, 0)


def test_a_counted_layer_still_counts_after_the_policy_changed(one, layer):
    one.watch(calls=True)
    site = one.bind("rms_norm", layer)
    one.configure(policy=SelectionPolicy(prefer="vendor"))
    site.fn(layer, torch.ones(1, 8))
    assert site.calls == 1


def test_counting_cannot_begin_under_a_graph(one, layer):
    site = one.bind("rms_norm", layer)
    one.freeze("the graph of 8 requests")
    with pytest.raises(FrozenSelectionError, match="what is watched cannot change any more"):
        one.watch(calls=True)
    assert site.fn is site.impl.fn


def test_a_policy_that_one_site_cannot_follow_changes_no_site(manager, impl, make_layer):
    built = manager(impl("a"), impl("b"), impl("a", op="gelu_and_mul"))
    layers = [make_layer() for _ in range(12)]
    # Whatever the order in which sites are decided anew, most of them could follow.
    sites = [built.bind("silu_and_mul", layer) for layer in layers[:6]]
    sites += [built.bind("gelu_and_mul", layers[6])]
    sites += [built.bind("silu_and_mul", layer) for layer in layers[7:]]
    before = [(site.impl, site.fn) for site in sites]
    with pytest.raises(SelectionError):
        built.configure(policy=SelectionPolicy(prefer="vendor:b", strict=True))
    assert [(site.impl, site.fn) for site in sites] == before
