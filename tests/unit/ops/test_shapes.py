# SPDX-License-Identifier: Apache-2.0
"""Properties of the references over drawn shapes, dtypes and numbers."""

from types import SimpleNamespace

import torch
from comparing import DTYPES, SPECS
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_dispatch.testing.exact import exact

dtypes = st.sampled_from(list(DTYPES.values()))
leading = st.lists(st.integers(0, 5), max_size=3).map(tuple)
activations = st.sampled_from(["silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul"])
norms = st.sampled_from(["rms_norm", "gemma_rms_norm"])
seeds = st.integers(0, 2**32)
few = settings(max_examples=60, deadline=None)


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@few
@given(name=activations, lead=leading, d=st.integers(1, 70), dtype=dtypes, seed=seeds)
def test_activation_halves_the_last_dimension(
    name: str, lead: tuple[int, ...], d: int, dtype: torch.dtype, seed: int
) -> None:
    out = SPECS[name].reference(None, normal(seed, *lead, 2 * d, dtype=dtype))
    assert out.shape == (*lead, d)
    assert out.dtype is dtype


@few
@given(name=activations, lead=leading, d=st.integers(1, 70), seed=seeds)
def test_activation_is_linear_in_up(name: str, lead: tuple[int, ...], d: int, seed: int) -> None:
    x = normal(seed, *lead, 2 * d)
    doubled = torch.cat((x[..., :d], 2 * x[..., d:]), dim=-1)
    assert torch.equal(SPECS[name].reference(None, doubled), 2 * SPECS[name].reference(None, x))


@few
@given(name=norms, lead=leading, hidden=st.integers(1, 70), dtype=dtypes, weight_dtype=dtypes, seed=seeds)
def test_norm_keeps_shapes_and_dtype(
    name: str, lead: tuple[int, ...], hidden: int, dtype: torch.dtype, weight_dtype: torch.dtype, seed: int
) -> None:
    obj = SimpleNamespace(weight=normal(seed, hidden, dtype=weight_dtype), variance_epsilon=1e-6)
    x, residual = normal(seed + 1, 2, *lead, hidden, dtype=dtype).unbind()
    alone = SPECS[name].reference(obj, x)
    out, total = SPECS[name].reference(obj, x, residual)
    assert [t.shape for t in (alone, out, total)] == [x.shape] * 3
    assert [t.dtype for t in (alone, out, total)] == [dtype] * 3


@few
@given(name=norms, lead=leading, hidden=st.integers(1, 70), epsilon=st.floats(1e-8, 1e-2), seed=seeds)
def test_norm_agrees_with_float64_at_any_epsilon(
    name: str, lead: tuple[int, ...], hidden: int, epsilon: float, seed: int
) -> None:
    obj = SimpleNamespace(weight=normal(seed, hidden), variance_epsilon=epsilon)
    x = normal(seed + 1, *lead, hidden)
    (want,) = exact(name, obj, x)
    # 1 + w cancels for w near -1: float32 keeps 2**-24 of 1, times a normalised element <= sqrt(70).
    torch.testing.assert_close(SPECS[name].reference(obj, x).double(), want, rtol=4e-6, atol=1e-6)


@few
@given(name=norms, tokens=st.integers(1, 9), hidden=st.integers(1, 70), dtype=dtypes, seed=seeds)
def test_norm_of_a_zero_residual_is_the_norm(
    name: str, tokens: int, hidden: int, dtype: torch.dtype, seed: int
) -> None:
    obj = SimpleNamespace(weight=normal(seed, hidden, dtype=dtype), variance_epsilon=1e-6)
    x = normal(seed + 1, tokens, hidden, dtype=dtype)
    out, total = SPECS[name].reference(obj, x, torch.zeros_like(x))
    assert torch.equal(total, x)
    assert torch.equal(out, SPECS[name].reference(obj, x))


rotary = SPECS["rotary_embedding"].reference
rotary_shapes = st.tuples(
    st.integers(0, 9), st.integers(1, 5), st.integers(1, 3), st.integers(1, 40), st.integers(0, 9)
)


def rotary_call(
    shape: tuple[int, int, int, int, int], seed: int, dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    """tokens, heads, kv_heads, rotary_dim / 2, elements that are not turned."""
    tokens, heads, kv_heads, pairs, rest = shape
    angles = normal(seed, 12, pairs)
    query = normal(seed + 1, tokens, heads, 2 * pairs + rest, dtype=dtype)
    key = normal(seed + 2, tokens, kv_heads, 2 * pairs + rest, dtype=dtype)
    positions = torch.randint(0, 12, (tokens,), generator=torch.Generator().manual_seed(seed))
    return [query, key, angles.cos(), angles.sin(), positions]


@few
@given(shape=rotary_shapes, interleaved=st.booleans(), dtype=dtypes, seed=seeds)
def test_rotary_keeps_shapes_and_dtype(
    shape: tuple[int, int, int, int, int], interleaved: bool, dtype: torch.dtype, seed: int
) -> None:
    query, key, *rest = rotary_call(shape, seed, dtype)
    new_query, new_key = rotary(None, query, key, *rest, interleaved)
    assert (new_query.shape, new_key.shape) == (query.shape, key.shape)
    assert (new_query.dtype, new_key.dtype) == (dtype, dtype)


@few
@given(shape=rotary_shapes, interleaved=st.booleans(), seed=seeds)
def test_rotary_keeps_lengths(shape: tuple[int, int, int, int, int], interleaved: bool, seed: int) -> None:
    query, key, *rest = rotary_call(shape, seed)
    for given_, turned in zip((query, key), rotary(None, query, key, *rest, interleaved), strict=True):
        torch.testing.assert_close(turned.norm(dim=-1), given_.norm(dim=-1), rtol=1e-5, atol=1e-6)


@few
@given(shape=rotary_shapes, interleaved=st.booleans(), seed=seeds)
def test_rotary_back_and_forth_is_nothing(shape: tuple[int, int, int, int, int], interleaved: bool, seed: int) -> None:
    query, key, cos, sin, positions = rotary_call(shape, seed)
    there = rotary(None, query, key, cos, sin, positions, interleaved)
    back = rotary(None, *there, cos, -sin, positions, interleaved)
    torch.testing.assert_close(back, (query, key), rtol=1e-5, atol=1e-5)


@few
@given(shape=rotary_shapes, seed=seeds)
def test_rotary_styles_differ_by_a_permutation_of_the_head(shape: tuple[int, int, int, int, int], seed: int) -> None:
    query, key, *rest = rotary_call(shape, seed)
    pairs = shape[3]
    order = torch.arange(2 * pairs).reshape(2, pairs).t().flatten()
    order = torch.cat((order, torch.arange(2 * pairs, query.shape[-1])))
    neox = rotary(None, query, key, *rest, False)
    pairwise = rotary(None, query[..., order], key[..., order], *rest, True)
    assert all(torch.equal(a[..., order], b) for a, b in zip(neox, pairwise, strict=True))
