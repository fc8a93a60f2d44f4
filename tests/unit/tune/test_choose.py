# SPDX-License-Identifier: Apache-2.0
"""From figures to orders."""

from __future__ import annotations

import dataclasses

import pytest

from fl_dispatch.tune.choose import cost, orders, ranked
from fl_dispatch.tune.measure import Figure

PREFERENCE = ["flagos", "vendor", "reference"]


def figure(impl_id, tokens, host=None, device=None, workload="norm", spread=0.0, dtype="bfloat16"):
    return Figure(workload, "rms_norm", dtype, tokens, impl_id, 1.0, host, device, spread, spread)


def test_in_graphs_device_time_counts_and_in_eager_mode_the_slower_of_the_two():
    one = figure("vendor", 1, host=10.0, device=3.0)
    assert cost(one, "graph") == (3.0, 0.0)
    assert cost(one, "eager") == (10.0, 0.0)
    assert cost(figure("vendor", 1, host=10.0, device=30.0), "eager") == (30.0, 0.0)


def test_without_a_device_there_is_no_cost_in_graphs():
    assert cost(figure("vendor", 1, host=10.0), "graph") is None
    assert cost(figure("vendor", 1), "eager") is None


def test_the_fastest_is_first_and_the_others_follow_by_time():
    costs = {"reference": (9.0, 0.0), "vendor": (2.0, 0.0), "flagos": (5.0, 0.0)}
    assert ranked(costs, PREFERENCE) == ["vendor", "flagos", "reference"]


@pytest.mark.parametrize(
    "costs", [{"vendor": (100, 0), "flagos": (102.9, 0)}, {"vendor": (10, 0.3), "flagos": (10.6, 0.3)}]
)
def test_on_a_tie_the_policys_order_decides(costs):
    assert ranked(costs, PREFERENCE) == ["flagos", "vendor"]
    assert ranked(costs, ["vendor", "flagos"]) == ["vendor", "flagos"]


def test_beyond_the_tie_the_faster_one_is_first():
    assert ranked({"vendor": (100, 0), "flagos": (103.1, 0)}, PREFERENCE) == ["vendor", "flagos"]


def test_however_much_times_vary_a_larger_difference_than_this_is_no_tie():
    assert ranked({"vendor": (100, 50), "flagos": (115, 50)}, PREFERENCE) == ["flagos", "vendor"]
    assert ranked({"vendor": (100, 50), "flagos": (116, 50)}, PREFERENCE) == ["vendor", "flagos"]


def first_in_eager_mode(impl_id, host, device=1, spread=0.0, **how):
    """Against a vendor of 100 microseconds; the policy prefers the other. Without a device time neither has one."""
    vendor = figure("vendor", 1, host=100, device=None if device is None else 1)
    figures = [vendor, figure(impl_id, 1, host=host, device=device, spread=spread)]
    return orders(figures, "rms_norm", "bfloat16", "eager", [impl_id, "vendor"], **how)[0]


def test_on_a_device_host_times_are_as_good_within_what_surrounds_a_call():
    assert first_in_eager_mode("flagos", host=115) == "flagos"
    assert first_in_eager_mode("flagos", host=117) == "vendor"
    assert first_in_eager_mode("flagos", host=117, spread=50) == "vendor"  # in whatever rounds


def test_what_takes_longer_on_the_device_is_compared_with_that_and_its_spread():
    assert first_in_eager_mode("flagos", host=100, device=114) == "vendor"
    assert first_in_eager_mode("flagos", host=100, device=114, spread=7) == "flagos"


def test_the_frameworks_own_method_gives_way_only_to_what_takes_less_than_two_thirds_on_the_host():
    assert first_in_eager_mode("native", host=149) == "native"
    assert first_in_eager_mode("native", host=152) == "vendor"
    assert first_in_eager_mode("native", host=10, device=114) == "vendor"
    assert first_in_eager_mode("native", host=149, device=130) == "vendor"  # the device's time is no less for it
    assert first_in_eager_mode("native", host=149, device=None) == "native"  # nor known, where it is not measured


def test_what_the_host_computes_itself_is_compared_as_measured():
    assert first_in_eager_mode("native", host=104, device=None, on_host=True) == "vendor"
    assert first_in_eager_mode("native", host=102, device=None, on_host=True) == "native"


def test_in_graphs_the_spread_of_the_device_makes_a_tie():
    def first(spread):
        figures = [figure("vendor", 1, host=1, device=10.0), figure("flagos", 1, host=1, device=11.0, spread=spread)]
        return orders(figures, "rms_norm", "bfloat16", "graph", PREFERENCE)[0]

    assert (first(0.0), first(1.0)) == ("vendor", "flagos")


def test_the_picture_and_the_table_show_what_was_measured():
    assert cost(figure("native", 1, host=30.0, device=1.0), "eager") == (30.0, 0.0)


def test_buckets_end_where_the_first_choice_changes():
    times = {1: (1, 5), 16: (1, 5), 64: (5, 1), 256: (5, 1)}
    figures = [
        figure(impl_id, tokens, host=0.0, device=both[place])
        for tokens, both in times.items()
        for place, impl_id in enumerate(("flagos", "vendor"))
    ]
    found = orders(figures, "rms_norm", "bfloat16", "graph", PREFERENCE)
    assert found == {16: ["flagos", "vendor"], "more": ["vendor", "flagos"]}


def test_one_first_choice_for_all_is_one_order():
    figures = [figure("vendor", tokens, device=1.0, host=1.0) for tokens in (1, 16)]
    assert orders(figures, "rms_norm", "bfloat16", "graph", PREFERENCE) == ["vendor"]


def test_the_forms_of_an_operator_are_added_up_and_one_that_cannot_do_all_is_out():
    figures = [
        figure("flagos", 1, device=1.0, host=1.0, workload="plain"),
        figure("flagos", 1, device=9.0, host=1.0, workload="residual"),
        figure("vendor", 1, device=4.0, host=1.0, workload="plain"),
        figure("vendor", 1, device=5.0, host=1.0, workload="residual"),
        figure("reference", 1, device=0.1, host=1.0, workload="plain"),
        figure("reference", 1, workload="residual"),
    ]
    assert orders(figures, "rms_norm", "bfloat16", "graph", PREFERENCE) == ["vendor", "flagos"]


def forms(impl_id, plain, residual):
    return [
        figure(impl_id, 1, device=plain, host=0.1, workload="plain"),
        figure(impl_id, 1, device=residual, host=0.1, workload="residual"),
    ]


def test_the_frameworks_own_method_gives_way_only_to_what_is_faster_in_every_form():
    def order(*others, preference=("native", *PREFERENCE)):
        figures = [*forms("native", 10.0, 10.0), *(one for other in others for one in other)]
        return orders(figures, "rms_norm", "bfloat16", "graph", preference)

    assert order(forms("vendor", 5.0, 11.0)) == ["native", "vendor"]  # a model may call the second form only
    assert order(forms("vendor", 5.0, 10.1)) == ["native", "vendor"]  # as good
    assert order(forms("vendor", 5.0, 10.1), preference=("vendor", "native")) == ["vendor", "native"]
    assert order(forms("vendor", 9.0, 9.0)) == ["vendor", "native"]
    assert order(forms("vendor", 1.0, 11.0), forms("flagos", 9.0, 9.0)) == ["flagos", "vendor", "native"]


def test_a_single_form_gives_way_likewise_where_ties_are_not_transitive():
    def first(native, flagos, vendor, purpose):
        times = {"native": native, "flagos": flagos, "vendor": vendor}
        figures = [
            figure(impl_id, 1, host=us, device=us if purpose == "graph" else 1.0) for impl_id, us in times.items()
        ]
        return orders(figures, "rms_norm", "bfloat16", purpose, ("native", *PREFERENCE))[0]

    assert first(100, 68, 60, "eager") == "vendor"  # flagos is as good as it, but takes more than two thirds of native
    assert first(10.4, 10.2, 10.0, "graph") == "vendor"  # flagos is as good as it, and native as flagos
    assert first(10.2, 10.1, 10.0, "graph") == "native"


@pytest.mark.parametrize("purpose", ["graph", "eager"])
def test_in_graphs_what_their_compiler_fuses_is_first_where_it_is_able(purpose):
    def order(impl_id, forms=("plain", "residual")):
        figures = [figure(impl_id, 1, 9.0, 9.0, workload=form) for form in forms]
        figures += [figure("vendor", 1, 1.0, 1.0, workload=form) for form in ("plain", "residual")]
        fused = [dataclasses.replace(one, fused=one.impl_id == impl_id) for one in figures]
        return orders(fused, "rms_norm", "bfloat16", purpose, ("native", *PREFERENCE))

    assert order("native") == (["native", "vendor"] if purpose == "graph" else ["vendor", "native"])
    assert order("native", forms=("plain",)) == ["vendor"]
    assert order("flagos") == ["vendor", "flagos"]  # only a framework's own method can be


def by_tokens(times, device=None, purpose="eager", preference=PREFERENCE, **how):
    """First choices: number of tokens to the first.

    Args:
        times: implementation to the host's microseconds, for 1, 16, 64 and so on tokens; None where it is not able.
        device: the same of the device.
    """
    counts = [1, 16, 64, 256, 1024]
    figures = [
        figure(impl_id, tokens, host, None if device is None else device[impl_id][place])
        for impl_id, row in times.items()
        for place, (tokens, host) in enumerate(zip(counts, row, strict=False))
    ]
    found = orders(figures, "rms_norm", "bfloat16", purpose, preference, **how)
    return {bound: order[0] for bound, order in found.items()} if isinstance(found, dict) else {"all": found[0]}


SLOWER, FASTER = [10.0] * 5, 7.0


def test_where_the_host_is_the_bound_one_number_of_tokens_alone_makes_no_bucket():
    for row in ([20, FASTER, 20, 20], [20, 20, FASTER, 20]):
        assert by_tokens({"reference": SLOWER[:4], "vendor": row}) == {"all": "reference"}
    # At either end it may be the first of many.
    assert by_tokens({"reference": SLOWER[:4], "vendor": [FASTER, 20, 20, 20]}) == {1: "vendor", "more": "reference"}
    assert by_tokens({"reference": SLOWER[:4], "vendor": [20, 20, 20, FASTER]}) == {64: "reference", "more": "vendor"}


def test_the_rest_of_an_order_stays_as_it_was_measured():
    times = {"reference": SLOWER[:3], "vendor": [20, FASTER, 20], "flagos": [30, 9, 30]}
    figures = [figure(impl_id, n, us) for impl_id, row in times.items() for n, us in zip((1, 16, 64), row, strict=True)]
    figures.append(figure("vendor", 256, 1.0))
    found = orders(figures, "rms_norm", "bfloat16", "eager", PREFERENCE)
    assert found == {64: ["reference", "vendor", "flagos"], "more": ["vendor"]}
    assert orders(figures[:-1], "rms_norm", "bfloat16", "eager", PREFERENCE) == ["reference", "vendor", "flagos"]


def test_firsts_that_alternate_are_settled_by_the_same_neighbours_from_either_end():
    other = [12, FASTER, 12, FASTER, FASTER]
    assert by_tokens({"reference": SLOWER, "vendor": other}) == {16: "reference", "more": "vendor"}
    assert by_tokens({"reference": SLOWER, "vendor": other[::-1]}) == {64: "vendor", "more": "reference"}


def test_more_than_noise_makes_a_bucket():
    assert by_tokens({"reference": SLOWER[:3], "vendor": [20, 6.6, 20]}) == {
        1: "reference",
        16: "vendor",
        "more": "reference",
    }


def test_nothing_takes_a_number_of_tokens_from_the_frameworks_own_method_as_noise():
    times = {"vendor": [10, 13, 10], "native": [20, 14, 20]}
    assert by_tokens(times, preference=("native", *PREFERENCE)) == {1: "vendor", 16: "native", "more": "vendor"}
    times |= {"flagos": [30, 9, 30]}  # first there, then native, then the vendor
    assert by_tokens(times, preference=("native", *PREFERENCE)) == {1: "vendor", 16: "flagos", "more": "vendor"}


def test_what_is_not_able_of_a_number_of_tokens_is_not_first_there():
    times = {"reference": [10, None, 10], "vendor": [20, 20, 20]}
    assert by_tokens(times) == {1: "reference", 16: "vendor", "more": "reference"}


@pytest.mark.parametrize(
    "how",
    [
        {"device": {"reference": SLOWER, "vendor": [1, FASTER + 0.5, 1]}},  # of the first
        {"device": {"reference": [1, 10.5, 1], "vendor": [1, 1, 1]}},  # of the other
        {"on_host": True},
        {"device": {"reference": SLOWER, "vendor": [20, FASTER, 20]}, "purpose": "graph"},
    ],
)
def test_where_work_is_what_takes_the_time_one_number_of_tokens_makes_a_bucket(how):
    wanted = {1: "reference", 16: "vendor", "more": "reference"}
    assert by_tokens({"reference": SLOWER[:3], "vendor": [20, FASTER, 20]}, **how) == wanted


def test_only_the_dtype_that_was_asked_for_counts():
    figures = [
        figure("vendor", 1, device=1.0, host=1.0),
        figure("flagos", 1, device=2.0, host=1.0),
        figure("flagos", 1, device=0.1, host=1.0, dtype="float16"),
    ]
    assert orders(figures, "rms_norm", "bfloat16", "graph", PREFERENCE) == ["vendor", "flagos"]


def test_nothing_measured_is_no_order():
    assert orders([figure("vendor", 1)], "rms_norm", "bfloat16", "eager", PREFERENCE) == []
