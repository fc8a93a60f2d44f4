# SPDX-License-Identifier: Apache-2.0
"""The references against float64 mathematics."""

import pytest
from comparing import DTYPES, SPECS, worst_error


@pytest.mark.parametrize("dtype_name", DTYPES)
@pytest.mark.parametrize("name", SPECS)
def test_reference_is_within_its_tolerance_of_float64(name: str, dtype_name: str) -> None:
    worst = worst_error(name, dtype_name, SPECS[name].reference)
    assert worst.fraction <= 1.0, f"{worst.fraction:.2f} of the tolerance at {worst.label!r}"


@pytest.mark.parametrize("dtype_name", DTYPES)
@pytest.mark.parametrize("name", SPECS)
def test_reference_is_within_its_tolerance_for_another_seed(name: str, dtype_name: str) -> None:
    worst = worst_error(name, dtype_name, SPECS[name].reference, seed=4711)
    assert worst.fraction <= 1.0, f"{worst.fraction:.2f} of the tolerance at {worst.label!r}"


@pytest.mark.parametrize("dtype_name", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", SPECS)
def test_half_tolerances_are_not_wider_than_a_few_times_the_largest_error(name: str, dtype_name: str) -> None:
    worst = worst_error(name, dtype_name, SPECS[name].reference)
    # Worst cases of single roundings rarely meet; rotary adds four of them.
    assert worst.fraction > (0.25 if name == "rotary_embedding" else 0.8)


@pytest.mark.parametrize("name", SPECS)
def test_every_dtype_has_a_tolerance_with_a_reason(name: str) -> None:
    tolerances = SPECS[name].tolerances
    assert set(tolerances) == set(DTYPES)
    assert all(len(tolerance.reason) > 20 and "\n" not in tolerance.reason for tolerance in tolerances.values())
