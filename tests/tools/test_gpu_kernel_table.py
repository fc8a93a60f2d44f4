# SPDX-License-Identifier: Apache-2.0
"""The GPU benchmark of what a step of decoding is made of: names of kernels, the table, what is said of each engine."""

from __future__ import annotations

import math
from collections.abc import Mapping

import kernel_table
import traces

GEMM, NORM, ROPE = "gemm", "norm<bf16>", "rope"


def step(calls: Mapping[str, float], us: Mapping[str, float], noise: float | None = 0.1) -> traces.Step:
    """Of kernels that take so long a call."""
    found = {name: traces.Kernel(n, traces.Measured(n * us[name], noise)) for name, n in calls.items()}
    total = sum(kernel.time.us for kernel in found.values())
    return traces.Step(found, traces.Measured(total, noise), traces.Measured(total - 1.0, noise))


def test_names_lose_parameters_and_namespaces_but_stay_apart() -> None:
    elementwise = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, std::array<char*, 1ul> >"
    )
    assert kernel_table.shortened(f"{elementwise}(int, at::native::FillFunctor<int>, std::array<char*, 1ul>)") == (
        "vectorized_elementwise_kernel<4, FillFunctor<int>, array<char*, 1ul> >"
    )
    assert kernel_table.shortened("nvjet_tst_128x64_64x8_2x1_v_bz_TNT") == "nvjet_tst_128x64_64x8_2x1_v_bz_TNT"
    assert kernel_table.shortened("Memcpy DtoD (Device -> Device)") == "Memcpy DtoD (Device -> Device)"
    long = kernel_table.shortened("a" * 60 + "b" * 60)
    assert (len(long), long[:47], long[-22:]) == (kernel_table.WIDTH, "a" * 47, "b" * 22)
    assert kernel_table.labels(["void f(int)", "void f(float)", "g|h"]) == {
        "void f(int)": "f",
        "void f(float)": "f #2",
        "g|h": "g/h",
    }


def test_the_table_has_what_differs_by_its_difference_and_sums_up_the_others() -> None:
    us = {GEMM: 30.0, NORM: 2.0, ROPE: 1.5, "fl_rope": 3.0, "copy": 1.0}
    native = step({GEMM: 4, NORM: 65, ROPE: 32, "copy": 2}, us)
    slower = step({GEMM: 4, NORM: 65, "fl_rope": 32, "copy": 3}, {**us, NORM: 2.5})
    same = step({GEMM: 4, NORM: 65, ROPE: 32, "copy": 2}, {**us, GEMM: 30.04})
    lines = kernel_table.rows({"native": native, "slower": slower, "same": same})
    assert lines == [
        "| fl_rope | - | 32 x 3.00 | - | 96.0 |",
        "| rope | 32 x 1.50 | - | 32 x 1.50 | 48.0 |",
        "| norm<bf16> | 65 x 2.00 | 65 x 2.50 | 65 x 2.00 | 32.5 |",
        "| copy | 2 x 1.00 | 3 x 1.00 | 2 x 1.00 | 1.0 |",
        "| other (1 kernels) | 4 calls, 120.0 | 4 calls, 120.0 | 4 calls, 120.2 | |",
    ]


def test_another_number_of_calls_is_a_row_even_where_the_time_does_not_show_it() -> None:
    native, other = (step({"fast": calls, GEMM: 4}, {"fast": 0.001, GEMM: 1.0}) for calls in (10, 11))
    (row, rest) = kernel_table.rows({"native": native, "other": other})
    assert row == "| fast | 10 x 0.00 | 11 x 0.00 | 0.0 |"
    assert rest.startswith("| other (1 kernels) |")


def test_a_sentence_says_whether_the_list_is_the_same_and_what_the_difference_is_made_of() -> None:
    us = {GEMM: 30.0, NORM: 2.0, ROPE: 1.5, "fl_rope": 3.0, "copy": 1.0}
    native = step({GEMM: 4, NORM: 65, ROPE: 32, "copy": 2}, us)
    other = step({GEMM: 4, NORM: 65, "fl_rope": 32, "copy": 3}, {**us, NORM: 2.5})
    same = step({GEMM: 4, NORM: 65, ROPE: 32, "copy": 2}, {**us, GEMM: 30.5})
    assert kernel_table.sentence("tuned", "native", same, native) == (
        "tuned: the same list of kernels as native's, name and number; device time +2.0 us a step (noise 0.2), made of "
        "+2.0 us in the same kernels (4)."
    )
    assert kernel_table.sentence("vendor", "native", other, native) == (
        "vendor: not the same list of kernels as native's; device time +81.5 us a step (noise 0.2), made of "
        "+96.0 us in kernels that native lacks (1, +32 calls), -48.0 us in kernels that it lacks (1, -32 calls), "
        "+1.0 us in kernels in another number (1, +1 calls), +32.5 us in the same kernels (2)."
    )


def test_the_page_has_the_idle_time_and_names_what_is_missing() -> None:
    native = step({GEMM: 4}, {GEMM: 30.0})
    result = {"title": "t", "date": "d", "command": "c", "setting": "s", "versions": {"torch": "2"}, "tokens": [2, 10]}
    result |= {"repeats": 3, "clock_us": {"1": {"native": [150.0] * 6}}, "failed": {"vendor": "vendor: died"}}
    result |= {"choices": {"tuned": ["rms_norm: native"]}}
    text = kernel_table.page({**result, "problems": ["tuned: rms_norm"]}, {1: {"native": native}, 64: {}})
    assert "By difference of jobs of 2 and 10 tokens" in text
    assert "Decoding, 1 request:" in text
    assert "| sum of device time, us | 120.0 ± 0.1 | |" in text
    assert "| device busy, us | 119.0 ± 0.1 | |" in text
    assert "| clock, us | 150.0 (150.0 to 150.0) | |" in text
    assert "| speed | 1.000 ± 0.000 | |" in text
    assert "| idle, us | 31.0 | |" in text
    assert "Layers of tuned:\n\n```\nrms_norm: native\n```" in text
    assert "Decoding, 64 requests:\n\nno engine is left." in text
    assert "vendor is missing, died" in text
    assert "Not as the policy says: tuned: rms_norm" in text


def test_where_there_was_one_repetition_the_noise_is_unknown_and_only_calls_differ() -> None:
    us = {GEMM: 30.0, NORM: 2.0}
    native, other = step({GEMM: 4, NORM: 65}, us, None), step({GEMM: 4, NORM: 64}, {**us, GEMM: 40.0}, None)
    (row, rest) = kernel_table.rows({"native": native, "other": other})
    assert (row, rest) == (
        "| norm<bf16> | 65 x 2.00 | 64 x 2.00 | 2.0 |",
        "| other (1 kernels) | 4 calls, 120.0 | 4 calls, 160.0 | |",
    )
    lines = kernel_table.section({"native": native, "other": other}, {"native": [3.0, 2.0], "other": [3.0, 4.0]})
    assert "| sum of device time, us | 250.0 | 288.0 | |" in lines
    assert "| speed | 1.000 ± 0.000 | 0.750 ± 3.176 | |" in lines
    assert math.isnan(kernel_table.speed([], [])[0])
    assert kernel_table.speed([0.0, -1.0, 2.0, 2.0], [1.0, 1.0, 1.0, 1.0, 1.0]) == (0.5, 0.0)  # times by difference
    assert any("device time +38.0 us a step (noise unknown)" in line for line in lines)
    result = {
        "title": "t",
        "date": "d",
        "command": "c",
        "setting": "s",
        "versions": {},
        "tokens": [2, 10],
        "repeats": 1,
    }
    text = kernel_table.page({**result, "failed": {}, "choices": {}}, {})
    assert "tokens, once, and `other` holds what is called as often everywhere. " in text
