# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch

from fl_dispatch.limits import checker, describe_arguments, dtype_of, positional


def test_arguments_passed_by_name_go_to_their_places():
    names = ("obj", "x", "residual")
    assert positional(names, (1,), {"residual": 3, "x": 2}) == ((1, 2, 3), {})
    assert positional(names, (), {"x": 2, "obj": 1}) == ((1, 2), {})
    assert positional(names, (1,), {"residual": 3}) == ((1,), {"residual": 3})
    assert positional(names, (1, 2), {"more": 4}) == ((1, 2), {"more": 4})


def test_the_dtype_of_a_call_is_that_of_its_first_tensor():
    assert dtype_of((None, torch.ones(1, dtype=torch.bfloat16))) == "bfloat16"
    assert dtype_of((None, 5)) is None
    assert dtype_of((None,)) is None


def test_arguments_are_described_by_shape_dtype_and_device():
    text = describe_arguments((object(), torch.ones(2, 3), None, [1]), {"inplace": True})
    assert text == "object, float32[2, 3]@cpu, None, list, inplace=True"


@pytest.mark.parametrize(
    ("declared", "settled", "needed"),
    [
        ({}, {}, False),
        ({"dtypes": {"float16"}}, {}, True),
        ({"dtypes": {"float16"}}, {"dtype_settled": True}, False),
        ({"devices": {"cpu"}}, {}, True),
        ({"devices": {"cpu"}}, {"device_settled": True}, False),
        ({"supports_layer": lambda obj: True}, {}, True),
        ({"supports_layer": lambda obj: True}, {"layer_settled": True}, False),
        ({"supports": lambda obj, x: True}, {"dtype_settled": True, "layer_settled": True}, True),
    ],
)
def test_only_what_is_not_settled_is_checked(manager, impl, declared, settled, needed):
    spec = manager().registry.spec("silu_and_mul")
    assert (checker(impl(**declared), spec, **settled) is not None) is needed
