# SPDX-License-Identifier: Apache-2.0
"""The check that a call of torch_npu is right: by torch against the schema, against the documented limits, the shapes of
the results on real and on meta tensors, the arguments left alone, and the numbers against float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from fl_dispatch import OpImpl, Sample, ops
from fl_dispatch.testing.exact import exact

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def several(out: Any) -> tuple[torch.Tensor, ...]:
    return out if isinstance(out, tuple) else (out,)


def generated(op_name: str, dtype: torch.dtype, device: str) -> Iterator[Sample]:
    """The operator's samples; of the norms also some with an epsilon that no kernel has as its default, of rotary
    embedding each also without the fused cache."""
    samples = ops.load_spec(op_name).samples
    assert samples is not None
    for number, sample in enumerate(samples(dtype, device, 7)):
        yield sample
        if hasattr(sample.obj, "cos_sin_cache"):
            bare = SimpleNamespace(**{**vars(sample.obj), "cos_sin_cache": None})
            yield Sample(f"{sample.label}, no fused cache", bare, sample.args, sample.kwargs)
        if number == 3 and hasattr(sample.obj, "variance_epsilon"):
            for args in (sample.args[:1], (sample.args[0], sample.args[0].flip(-1))):
                obj = SimpleNamespace(**{**vars(sample.obj), "variance_epsilon": 0.25})
                yield Sample(f"{sample.label}, epsilon 0.25", obj, args, {})


def accepted(impl: OpImpl, dtype: torch.dtype, device: str = "cpu") -> Iterator[Sample]:
    """The operator's samples that are inside the implementation's limits."""
    for sample in generated(impl.op_name, dtype, device):
        layer = impl.supports_layer is None or impl.supports_layer(sample.obj) is True
        if layer and impl.supports is not None and impl.supports(sample.obj, *sample.args, **sample.kwargs) is True:
            yield sample


def check_sample(impl: OpImpl, sample: Sample, dtype: torch.dtype) -> None:
    """Raise where a call of the implementation is not right."""
    spec = ops.load_spec(impl.op_name)
    tolerance = spec.tolerances[str(dtype).removeprefix("torch.")]
    tensors = [value for value in (*sample.args, *vars(sample.obj).values()) if isinstance(value, torch.Tensor)]
    before = [tensor.clone() for tensor in tensors]
    got = several(impl.fn(sample.obj, *sample.args, **sample.kwargs))
    for tensor, kept in zip(tensors, before, strict=True):
        assert torch.equal(tensor, kept), f"{sample.label}: an argument was written to"
    wanted = exact(impl.op_name, sample.obj, *sample.args, **sample.kwargs)
    for one, want in zip(got, wanted, strict=True):
        assert (one.dtype, one.shape) == (dtype, want.shape), f"{sample.label}: {one.dtype} {one.shape}"
        excess = (one.double() - want).abs() - tolerance.atol - tolerance.rtol * want.abs()
        assert excess.max() <= 0, f"{sample.label}: numbers are off by {excess.max():.3g} more than they may"


def check_meta(impl: OpImpl, sample: Sample) -> None:
    """Raise where the meta kernels lead to other shapes or dtypes than the reference has."""
    obj = SimpleNamespace(**{name: _meta(value) for name, value in vars(sample.obj).items()})
    args = tuple(map(_meta, sample.args))
    got = several(impl.fn(obj, *args, **sample.kwargs))
    wanted = several(ops.load_spec(impl.op_name).reference(sample.obj, *sample.args, **sample.kwargs))
    for one, want in zip(got, wanted, strict=True):
        assert (one.shape, one.device.type) == (want.shape, "meta"), sample.label


def _meta(value: Any) -> Any:
    return value.to("meta") if isinstance(value, torch.Tensor) else value


def check_all(impl: OpImpl, dtype: torch.dtype) -> int:
    """``check_sample`` and ``check_meta`` of every accepted sample; their number."""
    samples = list(accepted(impl, dtype))
    for sample in samples:
        check_sample(impl, sample, dtype)
        check_meta(impl, sample)
    return len(samples)
