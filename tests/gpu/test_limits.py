# SPDX-License-Identifier: Apache-2.0
"""Limits of particular kernels: calls beside those of the conformance kit, and what a newer kernel would change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from calls import IMPLS, REGISTRY, judged, model_calls, target

from fl_dispatch.ops.spec import Sample
from fl_dispatch.testing.calls import run
from fl_dispatch.testing.case import CheckFailed
from fl_dispatch.testing.judge import Worst, compare
from fl_dispatch.testing.managers import Spy, manager_for


def outside(op: str, impl_id: str) -> Iterator[tuple[str, str, Sample]]:
    """Label, dtype name and call; ``dtype`` is the one that the result is judged in."""
    plain, *others = model_calls(op, "bfloat16", 16)
    if op.endswith("norm"):
        residual = next(sample for sample in others if "residual" in sample.label)
        x, summand = residual.args
        apart = summand.new_zeros(16, 4096 + 8)[:, :4096].copy_(summand)
        yield "strided residual", "bfloat16", replace(residual, args=(x, apart))
        if op == "rms_norm":
            cast = SimpleNamespace(**vars(plain.obj), cast_x_before_out_mul=True)
            yield "cast before the weight", "bfloat16", replace(plain, obj=cast)
    if impl_id == "flagos":
        if op == "rotary_embedding":
            yield from (("partial", "bfloat16", s) for s in _rotary(plain) if s.label in ("partial", "no tokens"))
        return
    if op.endswith("and_mul"):
        yield "halves of 8 bytes and 16", "bfloat16", Sample("", plain.obj, (plain.args[0][:, :24].contiguous(),))
        yield "strided", "bfloat16", Sample("", plain.obj, (plain.args[0][:, :64],))
        yield "no tokens", "bfloat16", Sample("", plain.obj, (plain.args[0][:0],))
        shifted = plain.args[0].flatten()[1 : 1 + 16 * 64].view(16, 64)
        yield "an odd address", "bfloat16", Sample("", plain.obj, (shifted,))
    elif op.endswith("norm"):
        wide = SimpleNamespace(**{**vars(plain.obj), "weight": plain.obj.weight.float()})
        yield "float32 weight", "bfloat16", replace(plain, obj=wide)
        single = SimpleNamespace(**{**vars(plain.obj), "weight": plain.obj.weight.float()})
        yield "float32", "float32", replace(plain, obj=single, args=(plain.args[0].float(),))
        yield "no tokens", "bfloat16", replace(plain, args=(plain.args[0][:0],))
        yield "transposed", "bfloat16", replace(plain, args=(plain.args[0].t().contiguous().t(),))
    else:
        yield from ((sample.label, "bfloat16", sample) for sample in _rotary(plain) if sample.label != "partial")


def _rotary(plain: Sample) -> Iterator[Sample]:
    query, key, cos, sin, positions = plain.args
    yield replace(plain, label="int32 positions", args=(query, key, cos, sin, positions.int()))
    yield replace(plain, label="no tokens", args=(query[:0], key[:0], cos, sin, positions[:0]))
    apart = query.new_zeros(16, 32, 136)[:, :, :128].copy_(query)
    yield replace(plain, label="gaps between heads", args=(apart, key, cos, sin, positions))
    yield replace(plain, label="no cache", obj=SimpleNamespace())
    half_cos, half_sin = cos[:, :32].contiguous(), sin[:, :32].contiguous()
    fields = SimpleNamespace(cos_sin_cache=torch.cat((half_cos, half_sin), dim=-1))
    yield replace(plain, label="partial", obj=fields, args=(query, key, half_cos, half_sin, positions))


@pytest.mark.parametrize(("op", "impl_id"), [pair for pair in IMPLS if pair[1] != "reference"])
def test_a_call_outside_of_the_limits_is_served_without_the_kernel(op: str, impl_id: str) -> None:
    served = target(op, impl_id)
    for label, dtype, sample in outside(op, impl_id):
        spy = Spy(served.impl)
        judged(manager_for(served, spy.impl, strict=False), op, dtype, sample)
        assert spy.calls == 0, label


@pytest.mark.parametrize("hidden", [8, 24576])
@pytest.mark.parametrize("op", ["rms_norm", "gemma_rms_norm"])
def test_the_shortest_and_the_longest_rows_of_the_cuda_norms_are_right(op: str, hidden: int) -> None:
    manager = manager_for(target(op, "vendor.cuda"), strict=True)
    offset = 1.0 if op.startswith("gemma") else 0.0
    for dtype in ("float16", "bfloat16"):
        for residual in (False, True):
            x, other = torch.randn(2, 33, hidden, device="cuda").clamp_(-4, 4).to(getattr(torch, dtype))
            weight = (torch.randn(hidden, device="cuda").clamp_(-4, 4) * 0.25 + 1 - offset).to(x.dtype)
            obj = SimpleNamespace(weight=weight, variance_epsilon=1e-6)
            judged(manager, op, dtype, Sample(f"{hidden}", obj, (x, other) if residual else (x,)))


def test_the_approximate_tanh_of_the_hopper_binary_is_still_worth_refusing() -> None:
    """When this fails, sgl_kernel has become exact enough: lift the refusal, from that version on."""
    op = "gelu_tanh_and_mul"
    impl = next(impl for impl in REGISTRY.get(op) if impl.impl_id == "vendor.cuda")
    able = target("gelu_and_mul", "vendor.cuda")
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("not a Hopper GPU")
    assert impl.available is not None
    assert "approximate instruction" in str(impl.available())
    (sample,) = model_calls(op, "float16", 256)
    results = run(replace(able, impl=impl, spec=REGISTRY.spec(op)), sample, "float16")
    with pytest.raises(CheckFailed, match="is wrong in"):
        compare(REGISTRY.spec(op), "float16", sample, results, Worst())
