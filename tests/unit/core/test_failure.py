# SPDX-License-Identifier: Apache-2.0
"""What a call does when its implementation cannot or did not serve it; each rule on the first and on the 500th call."""

from __future__ import annotations

import logging

import pytest
import torch

from fl_dispatch import (
    NotSupported,
    OpArgumentError,
    OpExecutionError,
    SelectionError,
    SelectionPolicy,
)

SAFE = frozenset()


class Ways:
    """The ways to call one operator of a manager."""

    @staticmethod
    def call_op(manager, layer):
        return lambda x: manager.call_op("silu_and_mul", layer, x)

    @staticmethod
    def resolve_op(manager, layer):
        held = manager.resolve_op("silu_and_mul")
        return lambda x: held(layer, x)

    @staticmethod
    def bound(manager, layer):
        site = manager.bind("silu_and_mul", layer)

        def call(x):
            try:
                return site.fn(layer, x)
            except Exception as error:  # noqa: BLE001  (as adapters guard their calls)
                return site.recover(error, layer, x)

        return call


@pytest.fixture(params=["call_op", "resolve_op", "bound"])
def way(request):
    return getattr(Ways, request.param)


@pytest.fixture(params=[0, 499], ids=["first call", "500th call"])
def calls_before(request):
    return request.param


@pytest.fixture
def prepared(way, calls_before, manager, impl, failing, layer, x):
    """Builds a way to call, after so many calls that went well."""

    def prepare(error, policy=None, others=("other",), **declared):
        run = failing(error, answer="acme", failing=False)
        impls = [impl("acme", run=run, priority=110, **declared), *(impl(name, mutates=SAFE) for name in others)]
        call = way(manager(*impls, policy=policy), layer)
        for _ in range(calls_before):
            assert call(x) == "acme"
        run.failing = True
        return call

    return prepare


def test_with_undeclared_mutation_a_failure_is_an_error_that_names_everything(prepared, x):
    call = prepared(RuntimeError("kernel launch went wrong"))
    with pytest.raises(OpExecutionError) as caught:
        call(x)
    assert str(caught.value) == (
        "operator 'silu_and_mul', implementation 'vendor.acme' failed with RuntimeError: kernel launch went wrong\n"
        "  called with (Layer, float32[3, 8]@cpu)\n"
        "  not passed on to another implementation: it does not declare what it mutates, so the inputs may be damaged; "
        "mutates=frozenset() says that it does not\n"
        "  hint: go on without it by per_op, for example silu_and_mul=reference, and report the trace above to its vendor"
    )
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_without_mutation_the_next_candidate_serves(prepared, x):
    call = prepared(RuntimeError("kernel launch went wrong"), mutates=SAFE)
    assert call(x) == "other"


def test_not_supported_goes_to_the_next_candidate_even_when_mutation_is_undeclared(prepared, x):
    call = prepared(NotSupported("odd size"))
    assert [call(x) for _ in range(5)] == ["other"] * 5


def test_a_callers_mistake_is_an_argument_error(prepared):
    call = prepared(RuntimeError("shape mismatch"), mutates=SAFE)
    with pytest.raises(OpArgumentError) as caught:
        call(torch.ones(3, 7))
    assert "operator 'silu_and_mul' called with (Layer, float32[3, 7]@cpu): " in str(caught.value)
    assert "the last dimension of x must be even" in str(caught.value)
    assert "hint: the standard signature is silu_and_mul(obj: " in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), MemoryError("no memory"), RuntimeError("NPU out of memory")],
    ids=["torch", "python", "in words"],
)
def test_out_of_memory_keeps_its_type_and_says_where(prepared, x, error):
    call = prepared(error, mutates=SAFE)
    with pytest.raises(type(error)) as caught:
        call(x)
    assert type(caught.value) is type(error)
    assert caught.value.__notes__ == [
        "fl-dispatch: raised by operator 'silu_and_mul', implementation 'vendor.acme' called with "
        "(Layer, float32[3, 8]@cpu)"
    ]


def test_strict_never_falls_back(prepared, x):
    call = prepared(RuntimeError("boom"), SelectionPolicy(prefer="vendor", strict=True), mutates=SAFE)
    with pytest.raises(OpExecutionError, match="not passed on to another implementation: strict forbids a fallback"):
        call(x)


def test_strict_does_not_fall_back_on_not_supported_either(prepared, x):
    call = prepared(NotSupported("odd size"), SelectionPolicy(prefer="vendor", strict=True))
    with pytest.raises(OpExecutionError, match="failed with NotSupported: odd size"):
        call(x)


@pytest.mark.parametrize(
    "text", ["CUDA error: device-side assert triggered", "an illegal memory access was encountered"]
)
def test_a_lost_device_is_not_asked_again(prepared, x, text):
    call = prepared(RuntimeError(text), mutates=SAFE)
    with pytest.raises(OpExecutionError, match="the device is in an unknown state"):
        call(x)


def test_nothing_is_retried_while_a_graph_is_captured(prepared, x, monkeypatch):
    call = prepared(RuntimeError("boom"), mutates=SAFE)
    monkeypatch.setattr("fl_dispatch.failure.tracing_or_capturing", lambda: True)
    with pytest.raises(OpExecutionError, match="a trace or graph capture is under way"):
        call(x)


def test_interrupts_pass_untouched(prepared, x):
    with pytest.raises(KeyboardInterrupt):
        prepared(KeyboardInterrupt(), mutates=SAFE)(x)


def test_when_every_candidate_fails_each_reason_is_listed(manager, impl, failing, layer, x):
    impls = [
        impl("a", run=failing(RuntimeError("a broke")), mutates=SAFE),
        impl("b", run=failing(NotSupported("b cannot")), mutates=SAFE),
        impl("c", supports=lambda obj, x: "c wants 16 columns", mutates=SAFE),
    ]
    with pytest.raises(OpExecutionError) as caught:
        manager(*impls, with_reference=False).call_op("silu_and_mul", layer, x)
    assert str(caught.value) == (
        "operator 'silu_and_mul' called with (Layer, float32[3, 8]@cpu): no implementation is able to serve it\n"
        "   x vendor.a                 raised RuntimeError: a broke\n"
        "   x vendor.b                 raised NotSupported: b cannot\n"
        "   x vendor.c                 c wants 16 columns\n"
        "  hint: `fl-dispatch explain` shows every limit"
    )


def test_a_declared_mutation_is_named(manager, impl, failing, layer, x):
    one = impl(op="rms_norm", run=failing(), mutates={"x", "residual"})
    with pytest.raises(OpExecutionError, match="it declares that it mutates residual, x, so the inputs may be damaged"):
        manager(one).call_op("rms_norm", layer, x, x.clone())


def test_a_failure_where_a_declared_mutation_cannot_have_happened_is_passed_on(manager, impl, failing, layer, x):
    one = impl(op="rms_norm", run=failing(), mutates={"x", "residual"})
    assert torch.isfinite(manager(one).call_op("rms_norm", layer, x)).all()


def test_the_second_candidates_failure_is_judged_by_its_own_declaration(manager, impl, failing, layer, x):
    impls = [impl("a", run=failing(), mutates=SAFE), impl("b", run=failing(RuntimeError("b broke")))]
    with pytest.raises(OpExecutionError, match=r"implementation 'vendor.b' failed with RuntimeError: b broke"):
        manager(*impls).call_op("silu_and_mul", layer, x)


def test_a_missing_argument_is_the_callers_mistake(manager, impl, layer):
    with pytest.raises(OpArgumentError, match="missing a required argument: 'x'"):
        manager(impl()).call_op("silu_and_mul", layer)


def test_an_unknown_argument_is_the_callers_mistake(manager, impl, layer, x):
    with pytest.raises(OpArgumentError, match="got an unexpected keyword argument 'resid'"):
        manager(impl(op="rms_norm")).call_op("rms_norm", layer, x, resid=None)


def test_a_missing_field_of_the_layer_is_the_callers_mistake(manager, x):
    with pytest.raises(OpArgumentError, match=r"rms_norm reads obj.weight"):
        manager().call_op("rms_norm", object(), x)


def test_a_callers_mistake_never_demotes(manager, impl, failing, layer):
    one = manager(impl(run=failing(), mutates=SAFE))
    for _ in range(5):
        with pytest.raises(OpArgumentError):
            one.call_op("silu_and_mul", layer, torch.ones(3, 7))
    assert one.failures.demotions() == []


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        ({"dtypes": {"float16"}}, "takes float16, not float32"),
        ({"supports": lambda obj, x: "wants 16 columns"}, "wants 16 columns"),
        ({"supports": lambda obj, x: False}, "its supports() predicate says no"),
        ({"supports": lambda obj, x: x.nothing}, "its supports() predicate raised AttributeError"),
        ({"dtypes": {"float16"}, "supports": lambda obj, x: True}, "takes float16, not float32"),
    ],
    ids=["dtype", "reason", "no", "raises", "both"],
)
class TestRefusal:
    def test_goes_to_the_next_candidate_before_the_kernel(
        self, way, manager, impl, failing, layer, x, declared, reason
    ):
        run = failing()
        one = manager(impl("acme", run=run, priority=110, **declared), impl("other"))
        call = way(one, layer)
        assert [call(x), call(x)] == ["other", "other"]
        assert run.calls == 0
        (noted,) = one.failures.noted()
        assert noted["impl_id"] == "vendor.acme"
        assert noted["reason"].startswith(reason)
        assert noted["calls"] == 2

    def test_is_an_error_under_strict(self, way, manager, impl, layer, x, declared, reason):
        policy = SelectionPolicy(prefer="vendor:acme", strict=True)
        call = way(manager(impl("acme", **declared), impl("other"), policy=policy), layer)
        with pytest.raises(SelectionError) as caught:
            call(x)
        assert "strict, and the chosen implementation is not able to serve it" in str(caught.value)
        assert reason in str(caught.value)
        assert str(caught.value).endswith("hint: turn strict off, or widen the order")

    def test_is_an_error_when_all_refuse(self, way, manager, impl, layer, x, declared, reason):
        call = way(manager(impl("a", **declared), impl("b", **declared), with_reference=False), layer)
        with pytest.raises(SelectionError) as caught:
            call(x)
        assert str(caught.value).count(reason) == 2


def test_a_device_limit_is_checked_where_the_device_is_not_known(manager, impl, layer):
    one = manager(impl("acme", devices={"cpu"}, priority=110), impl("other"))
    assert one.call_op("silu_and_mul", layer, torch.ones(2, 4)) == "acme"
    assert one.call_op("silu_and_mul", layer, torch.ones(2, 4, device="meta")) == "other"
    (noted,) = one.failures.noted()
    assert noted["reason"] == "needs device cpu, the input is on meta"


def test_a_limit_is_checked_for_an_argument_passed_by_name(manager, impl, layer, x):
    one = manager(impl("acme", dtypes={"float16"}, priority=110), impl("other", dtypes={"float32"}))
    assert one.call_op("silu_and_mul", layer, x=x) == "other"
    assert one.call_op("silu_and_mul", layer, x=x.half()) == "acme"
    assert one.call_op("silu_and_mul", obj=layer, x=x.half()) == "acme"


def test_a_limit_looks_at_the_first_tensor_of_the_operator_and_not_of_the_call(manager, impl, layer):
    q = torch.ones(2, 1, 4)
    tables = {"cos": torch.ones(4, 2), "sin": torch.ones(4, 2), "position_ids": torch.arange(2)}
    one = manager(impl("acme", op="rotary_embedding", dtypes={"float32"}))
    assert one.call_op("rotary_embedding", layer, **tables, key=q, query=q) == "acme"


def test_the_layer_is_checked_per_call_where_it_is_not_bound(manager, impl, make_layer, x):
    one = manager(impl(op="rms_norm", honours={"cast_x_before_out_mul": {False}}))
    assert one.call_op("rms_norm", make_layer(), x) == "acme"
    assert isinstance(one.call_op("rms_norm", make_layer(cast_x_before_out_mul=True), x), torch.Tensor)
    (noted,) = one.failures.noted()
    assert noted["reason"] == "honours cast_x_before_out_mul only as False, this layer has True"


def test_an_error_of_an_operator_called_inside_an_implementation_is_not_judged_again(manager, impl, layer, x):
    def outer(obj, x):
        return inner.call_op("silu_and_mul", obj, x)

    def boom(obj, x):
        raise RuntimeError("inner broke")

    inner = manager(impl("inner", run=boom))
    with pytest.raises(OpExecutionError, match=r"implementation 'vendor\.inner' failed"):
        manager(impl("outer", run=outer, mutates=SAFE)).call_op("silu_and_mul", layer, x)


def test_out_of_memory_of_a_nested_operator_gets_one_note(manager, impl, layer, x):
    def boom(obj, x):
        raise MemoryError("gone")

    inner = manager(impl("inner", run=boom))
    outer = manager(impl("outer", run=lambda obj, x: inner.call_op("silu_and_mul", obj, x), mutates=SAFE))
    with pytest.raises(MemoryError) as caught:
        outer.call_op("silu_and_mul", layer, x)
    assert len(caught.value.__notes__) == 1


def test_a_failure_survives_a_policy_change_of_another_thread_in_the_middle_of_the_call(manager, impl, layer, x):
    def boom(obj, x):
        one.configure(policy=SelectionPolicy(deny_vendors={"acme"}))
        raise RuntimeError("boom")

    one = manager(impl("acme", run=boom, mutates=SAFE, priority=110), impl("other", mutates=SAFE), impl("third"))
    held = one.resolve_op("silu_and_mul")
    assert held(layer, x) in ("other", "third")


def test_a_fallback_is_logged_once_and_counted(manager, impl, failing, call, layer, x, caplog):
    one = manager(impl("acme", run=failing(NotSupported("odd size")), priority=110), impl("other"))
    site = one.bind("silu_and_mul", layer)
    with caplog.at_level(logging.WARNING, logger="fl_dispatch"):
        for _ in range(3):
            assert call(site, layer, x) == "other"
    assert [record.getMessage() for record in caplog.records] == [
        "operator silu_and_mul: vendor.acme did not serve a call (raised NotSupported: odd size); vendor.other did. "
        "Further such calls are counted, not logged."
    ]
    assert site.fallbacks == {("vendor.acme", "vendor.other"): 3}
