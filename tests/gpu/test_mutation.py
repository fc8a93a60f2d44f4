# SPDX-License-Identifier: Apache-2.0
"""Implementations write to what they declare and to nothing else, nor outside of their tensors."""

from __future__ import annotations

import functools
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from calls import IMPLS, REGISTRY, implementation, manager_for, run, sized_samples

POISON = 7.0


def guarded(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same values and strides inside of a larger buffer full of poison, and that buffer."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    buffer = torch.full((extent + 256,), 7, dtype=tensor.dtype, device=tensor.device)
    view = buffer.as_strided(tensor.shape, tensor.stride(), 128)
    view.copy_(tensor)
    return view, buffer


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8).clone()


@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize(("op", "impl_id"), IMPLS)
def test_only_what_is_declared_is_written_to(op: str, impl_id: str, inplace: bool) -> None:
    impl = implementation(op, impl_id)
    manager = manager_for(impl)
    names = REGISTRY.spec(op).parameters[1:]
    for sample in sized_samples(op, "bfloat16", 37, 11):
        if not (inplace or sample.kwargs):
            pytest.skip(f"{op} has no argument inplace")
        kwargs = {**sample.kwargs, "inplace": inplace} if sample.kwargs else {}
        views, buffers = zip(*(guarded(tensor) for tensor in sample.args), strict=True)
        fields = {name: guarded(v) for name, v in vars(sample.obj).items() if isinstance(v, torch.Tensor)}
        obj = SimpleNamespace(**{**vars(sample.obj), **{name: view for name, (view, _) in fields.items()}})
        may_write = set(impl.mutates or ())
        # Without a residual, and with inplace=False, the operator forbids what the implementation declares.
        if not inplace or (op.endswith("norm") and len(views) == 1):
            may_write = set()
        before = {name: bits(buffer) for name, buffer in zip(names, buffers, strict=False)}
        constant = {name: bits(buffer) for name, (_, buffer) in fields.items()}
        results = run(functools.partial(manager.call_op, op), replace(sample, obj=obj, args=views, kwargs=kwargs))
        torch.cuda.synchronize()
        for name, view, buffer in zip(names, views, buffers, strict=False):
            same = torch.equal(bits(buffer), before[name])
            if name not in may_write:
                assert same, f"{name} was written to ({sample.label})"
                assert all(result.data_ptr() != view.data_ptr() for result in results)
                continue
            assert not same, f"{name} is declared as mutated and was not ({sample.label})"
            view.fill_(POISON)
            assert torch.equal(buffer, torch.full_like(buffer, POISON)), f"outside of {name}"
        for name, (_, buffer) in fields.items():
            assert torch.equal(bits(buffer), constant[name]), f"obj.{name} was written to"


@pytest.mark.parametrize("impl_id", ["vendor.cuda", "flagos", "reference"])
def test_rotary_leaves_the_rest_of_the_packed_projection_alone(impl_id: str) -> None:
    """query and key are views of one projection, whose values lie between the tokens of each."""
    manager = manager_for(implementation("rotary_embedding", impl_id))
    for sample in sized_samples("rotary_embedding", "bfloat16", 37, 12):
        query, key = sample.args[:2]
        packed = query.as_strided((37, 48, 128), (48 * 128, 128, 1))
        assert key.data_ptr() == packed[:, 32:].data_ptr()
        values, turned = bits(packed[:, 40:]), bits(packed[:, :40])
        manager.call_op("rotary_embedding", sample.obj, *sample.args, **sample.kwargs)
        assert torch.equal(bits(packed[:, 40:]), values)
        assert torch.equal(bits(packed[:, :40]), turned) == (impl_id != "vendor.cuda")
