# SPDX-License-Identifier: Apache-2.0
"""Measuring for real, on the CPU."""

from __future__ import annotations

import time

import pytest
import torch

from fl_dispatch.native import FrameworkLayer
from fl_dispatch.tune.choose import orders
from fl_dispatch.tune.measure import measure
from fl_dispatch.tune.timing import Between, host_us_among_others
from fl_dispatch.tune.workloads import MEASURED, ModelShape
from fl_dispatch.types import BackendImplKind, OpImpl


class Layer:
    """Of a framework; can be weakly referenced."""


TINY = ModelShape(hidden=16, intermediate=16, heads=2, kv_heads=1, head_size=8)


@pytest.fixture
def measured(registry):
    def run(
        operators=("silu_and_mul",), tokens=(1, 4, 8), progress=lambda line: None, dtypes=("float32",), layers=None
    ):
        return measure(
            registry,
            operators=operators,
            dtypes=dtypes,
            tokens=tokens,
            shape=TINY,
            device="cpu",
            bandwidth=1e9,
            rounds=3,
            progress=progress,
            layers=layers,
        )

    return run


def test_the_faster_one_is_chosen_for_each_number_of_tokens(measured):
    figures = [figure for figure in measured() if figure.impl_id != "reference"]
    found = orders(figures, "silu_and_mul", "float32", "eager", ["vendor.many", "vendor.few"])
    assert found == {4: ["vendor.few", "vendor.many"], "more": ["vendor.many", "vendor.few"]}


def test_times_are_those_of_a_call(measured):
    (many,) = (figure for figure in measured(tokens=(1,)) if figure.impl_id == "vendor.many")
    assert 1500 <= many.host_us < 15_000  # it takes 1.5 ms; the machine may be busy
    assert many.device_us is None


def test_the_floor_is_bytes_over_bandwidth(measured):
    (figure, *_) = measured(tokens=(4,))
    assert figure.floor_us == pytest.approx(3 * 4 * 16 * 4 / 1e9 * 1e6)


def test_every_operator_can_be_measured(measured):
    figures = measured(operators=MEASURED, tokens=(2,))
    able = {figure.op_name for figure in figures if figure.impl_id == "reference" and figure.host_us is not None}
    assert able == set(MEASURED)


def test_one_that_is_not_able_or_fails_has_its_reason_and_the_others_are_measured(registry, measured, timed):
    def failing(obj, x):
        raise RuntimeError("boom")

    registry.register(timed("half", lambda tokens: 0, dtypes={"float16"}))
    registry.register(timed("never", lambda tokens: 0, supports=lambda obj, x: "needs a full moon"))
    registry.register(OpImpl("silu_and_mul", "vendor.bad", BackendImplKind.VENDOR, failing, vendor="bad"))
    figures = {figure.impl_id: figure for figure in measured(tokens=(1,))}
    assert figures["vendor.half"].failed == "takes float16, not float32"
    assert figures["vendor.never"].failed == "needs a full moon"
    assert figures["vendor.bad"].failed == "RuntimeError: boom"
    assert figures["vendor.few"].host_us is not None


def test_progress_is_told_step_by_step(measured):
    lines = []
    measured(tokens=(1, 2), progress=lines.append)
    assert [line.split(":")[0] for line in lines] == [
        "[1/2] silu_and_mul, float32, 1 tokens",
        "[2/2] silu_and_mul, float32, 2 tokens",
    ]
    assert "vendor.few " in lines[0]


@pytest.mark.parametrize("fused", [True, False])
def test_with_a_frameworks_layers_all_are_called_as_the_framework_calls_them(measured, timed, fused):
    own, bound, sites, built = set(), set(), set(), []
    half_a_millisecond = timed("own", lambda tokens: 0.5e-3).fn

    def layers(op_name, sizes, dtype, device):
        assert (op_name, sizes["hidden"], str(dtype), device) == ("silu_and_mul", 16, "torch.float32", "cpu")

        def method(obj, pair):
            own.add((obj, pair[1]))
            return half_a_millisecond(obj, pair[0])

        def forward(site):
            def called(obj, pair):
                assert site.obj is obj
                bound.add((obj, pair[1]))
                sites.add(site.impl.impl_id)
                return site.fn(obj, pair[0])

            return called

        built.append(FrameworkLayer(Layer(), method, forward, lambda x: ((x, "in a pair"),), fused=fused))
        return built[-1]

    figures = {figure.impl_id: figure for figure in measured(tokens=(1, 2), layers=layers) if figure.tokens == 1}
    assert 400 < figures["native"].host_us < figures["vendor.many"].host_us
    assert len(built) == 8  # for all numbers of tokens
    assert own == bound == {(one.layer, "in a pair") for one in built}
    assert sites == set(figures) - {"native"} == {"reference", "vendor.few", "vendor.many"}
    assert {impl_id for impl_id, figure in figures.items() if figure.fused} == ({"native"} if fused else set())


def test_each_dtype_has_layers_of_its_own(measured):
    built = []

    def layers(op_name, sizes, dtype, device):
        built.append(dtype)
        return FrameworkLayer(Layer(), lambda obj, x: None, lambda site: site.fn, lambda x: (x,))

    measured(tokens=(1,), dtypes=("float32", "float16"), layers=layers)
    assert built == [torch.float32] * 8 + [torch.float16] * 8


def test_a_layer_that_does_not_come_by_its_operator_is_no_measure_of_it(measured):
    def layers(op_name, sizes, dtype, device):
        def forward(site):
            def passing_on(obj, x):
                site.passed_on("no key")

            return passing_on

        return FrameworkLayer(Layer(), lambda obj, x: None, forward, lambda x: (x,))

    figures = {figure.impl_id: figure for figure in measured(tokens=(1,), layers=layers)}
    assert figures["vendor.few"].failed == (
        "RuntimeError: the layer does not come by the operator with these arguments: the framework, no key"
    )
    assert figures["native"].host_us is not None


def test_what_an_adapter_gives_that_is_no_layer_is_named_and_the_others_are_measured(measured):
    figures = {figure.impl_id: figure for figure in measured(tokens=(1,), layers=lambda *_: (Layer(), len))}
    assert figures["native"].failed == f"TypeError: {__name__} gave a tuple and no FrameworkLayer; update the adapter"
    assert figures["vendor.few"].host_us > 0


def test_one_that_fails_once_it_is_measured_takes_no_figure_of_another_with_it(registry, measured):
    calls = []

    def late(obj, x):
        calls.append(1)
        if len(calls) > 6:
            raise RuntimeError("out of memory")
        return x

    registry.register(OpImpl("silu_and_mul", "vendor.late", BackendImplKind.VENDOR, late, vendor="late"))
    figures = {figure.impl_id: figure for figure in measured(tokens=(1,))}
    assert figures["vendor.late"].failed == "RuntimeError: out of memory"
    assert figures["vendor.few"].host_us > 0
    assert len(figures) == 4


def test_what_lies_between_calls_does_not_count():
    order = []

    class Long(Between):
        def __call__(self):
            order.append("-")
            time.sleep(0.002)

    calls = [lambda: order.append("a"), lambda: order.append("b")]
    assert host_us_among_others(calls, 5, Long("cpu")) < 1000
    assert "".join(order) == "-a-b-a-b-a"


def test_a_framework_without_such_a_layer_says_why(measured):
    def layers(op_name, sizes, dtype, device):
        raise LookupError("has no such layer")

    figures = {figure.impl_id: figure for figure in measured(tokens=(1,), layers=layers)}
    assert figures["native"].failed == "LookupError: has no such layer"
    assert figures["vendor.few"].host_us > 0  # measured all the same
