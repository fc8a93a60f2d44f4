# SPDX-License-Identifier: Apache-2.0
"""The conformance kit's checks, with the stand-in where torch_npu would be: everything but what needs the device."""

from __future__ import annotations

import dataclasses

import pytest

from fl_dispatch import ops
from fl_dispatch.testing.case import NotApplicable, Target
from fl_dispatch.testing.checks import fields, limits, mutation, numbers, shapes, signature
from fl_vendor_ascend.operators import _DECLARED

#: Left out: compiling is in test_calls.py; threads, graphs and processes say nothing of a stand-in.
CHECKS = (signature, shapes, numbers, limits, mutation, fields)


@pytest.mark.parametrize("op", sorted(_DECLARED))
def test_the_kit_finds_nothing_wrong(impls, npu, op):
    impl = dataclasses.replace(impls[op], devices=None, available=None)
    target = Target("ascend", impl, ops.load_spec(op), "cpu", seed=20)
    ran = []
    for module in CHECKS:
        for case in module.cases(target):
            try:
                case.run()
            except NotApplicable:
                continue
            ran.append(case.check)
    assert {"signature", "numbers"} <= set(ran)
    assert npu.CALLS
