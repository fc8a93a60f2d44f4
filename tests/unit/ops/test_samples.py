# SPDX-License-Identifier: Apache-2.0
"""The generated calls: reproducible, independent of each other, well formed, and covering what they should."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from comparing import DTYPES, SPECS, samples_of

from fl_dispatch.ops.spec import Sample

every_operator = pytest.mark.parametrize("name", SPECS)
every_dtype = pytest.mark.parametrize("dtype_name", DTYPES)


def tensors(sample: Sample) -> list[torch.Tensor]:
    return [value for value in (*sample.args, *vars(sample.obj).values()) if isinstance(value, torch.Tensor)]


@every_dtype
@every_operator
def test_equal_seeds_give_equal_samples(name: str, dtype_name: str) -> None:
    for first, second in zip(samples_of(name, dtype_name, 3), samples_of(name, dtype_name, 3), strict=True):
        assert first.label == second.label
        assert all(map(torch.equal, tensors(first), tensors(second)))


@every_operator
def test_another_seed_gives_other_numbers(name: str) -> None:
    first, second = (
        next(sample for sample in samples_of(name, "float32", seed) if sample.args[0].numel()) for seed in (3, 4)
    )
    assert not torch.equal(first.args[0], second.args[0])


@every_operator
def test_samples_leave_the_global_random_state_alone(name: str) -> None:
    before = torch.get_rng_state()
    assert list(samples_of(name, "float32"))
    assert torch.equal(before, torch.get_rng_state())


@every_operator
def test_no_two_samples_share_memory(name: str) -> None:
    samples = list(samples_of(name, "float32"))
    storages = [{tensor.untyped_storage().data_ptr() for tensor in tensors(s) if tensor.numel()} for s in samples]
    assert sum(map(len, storages)) == len(set().union(*storages))


@every_operator
def test_labels_are_unique(name: str) -> None:
    labels = [sample.label for sample in samples_of(name, "float32")]
    assert len(labels) == len(set(labels))


@every_dtype
@every_operator
def test_check_finds_nothing_wrong_with_any_sample(name: str, dtype_name: str) -> None:
    check = SPECS[name].check
    assert check is not None
    found = {sample.label: check(sample.obj, *sample.args, **sample.kwargs) for sample in samples_of(name, dtype_name)}
    assert set(found.values()) == {None}, found


def rows_gapped(t: torch.Tensor) -> bool:
    return t.dim() > 1 and t.stride(-1) == 1 and not t.is_contiguous()


COVERED: dict[str, Callable[[Sample], bool]] = {
    "zero tokens": lambda s: s.args[0].shape[0] == 0,
    "one token": lambda s: s.args[0].shape[0] == 1,
    "3 tokens": lambda s: s.args[0].shape[0] == 3,
    "17 tokens": lambda s: s.args[0].shape[0] == 17,
    "256 tokens": lambda s: s.args[0].shape[0] == 256,
    "3-D": lambda s: s.args[0].dim() == 3,
    "strided rows": lambda s: rows_gapped(s.args[0]),
    "transposed": lambda s: s.args[0].dim() > 1 and s.args[0].stride(0) < s.args[0].stride(1),
}
NOT_FOR_ROTARY: dict[str, Callable[[Sample], bool]] = {
    "rows not a multiple of 16 bytes": lambda s: s.args[0].shape[-1] * s.args[0].element_size() % 16 != 0,
    "size not a power of two": lambda s: s.args[0].shape[-1].bit_count() > 1,
    "large": lambda s: s.args[0].numel() > 0 and s.args[0].abs().max().item() > 100,
    "tiny": lambda s: s.args[0].numel() > 64 and s.args[0].abs().max().item() < 2.0**-7,
}
NORM: dict[str, Callable[[Sample], bool]] = {
    "float32 weight": lambda s: s.obj.weight.dtype is torch.float32,
    "squares beyond float16": lambda s: s.args[0].numel() > 0 and s.args[0].abs().max().item() > 256,
    "residual": lambda s: len(s.args) == 2,
    "no residual": lambda s: len(s.args) == 1,
}
RMS_NORM: dict[str, Callable[[Sample], bool]] = {
    "float32 product": lambda s: not s.obj.cast_x_before_out_mul,
    "cast first": lambda s: s.obj.cast_x_before_out_mul and not hasattr(s.obj, "cast_x_to_weight_dtype"),
    "cast to the weight's dtype": lambda s: getattr(s.obj, "cast_x_to_weight_dtype", False),
}
ROTARY: dict[str, Callable[[Sample], bool]] = {
    "head_size 64": lambda s: s.args[0].shape[-1] == 64,
    "head_size 80": lambda s: s.args[0].shape[-1] == 80,
    "head_size 96": lambda s: s.args[0].shape[-1] == 96,
    "head_size 128": lambda s: s.args[0].shape[-1] == 128,
    "neox": lambda s: not s.kwargs["rotary_interleaved"],
    "interleaved": lambda s: s.kwargs["rotary_interleaved"],
    "inplace": lambda s: s.kwargs["inplace"],
    "not inplace": lambda s: not s.kwargs["inplace"],
    "partial neox": lambda s: s.obj.rotary_dim < s.args[0].shape[-1] and not s.kwargs["rotary_interleaved"],
    "partial interleaved": lambda s: s.obj.rotary_dim < s.args[0].shape[-1] and s.kwargs["rotary_interleaved"],
    "fewer kv heads": lambda s: s.args[1].shape[1] < s.args[0].shape[1],
    "as many kv heads": lambda s: s.args[1].shape[1] == s.args[0].shape[1],
    "repeated positions": lambda s: len(s.args[4].unique()) < len(s.args[4]),
    "unsorted positions": lambda s: any(a > b for a, b in pairwise(s.args[4].tolist())),
    "int32 positions": lambda s: s.args[4].dtype is torch.int32,
    "float32 cache": lambda s: s.args[2].dtype is torch.float32,
}


def wanted(name: str) -> dict[str, Callable[[Sample], Any]]:
    if name == "rotary_embedding":
        return COVERED | ROTARY
    common = COVERED | NOT_FOR_ROTARY
    if name == "rms_norm":
        return common | NORM | RMS_NORM
    return common | NORM if name == "gemma_rms_norm" else common


@pytest.mark.parametrize(("name", "what"), [(name, what) for name in SPECS for what in wanted(name)])
def test_samples_cover(name: str, what: str) -> None:
    assert any(wanted(name)[what](sample) for sample in samples_of(name, "float16"))


def test_rotary_cache_of_obj_is_what_cos_and_sin_were_split_from() -> None:
    for sample in samples_of("rotary_embedding", "float16"):
        query, _, cos, sin, _ = sample.args
        assert torch.equal(sample.obj.cos_sin_cache, torch.cat((cos, sin), dim=-1))
        assert sample.obj.head_size == query.shape[-1]
        assert sample.obj.rotary_dim == 2 * cos.shape[-1]
        assert sample.obj.is_neox_style is not sample.kwargs["rotary_interleaved"]
