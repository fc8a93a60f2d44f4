# SPDX-License-Identifier: Apache-2.0
"""The stand-in computes what torch_npu documents: against float64, and against the documentation's own wording."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from npu_stand_in import OPERATORS, OutsideTheDocumentation

from fl_dispatch import ops
from fl_dispatch.testing.exact import exact

F32 = torch.float32


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(3)


def close(got: torch.Tensor, want: torch.Tensor, op: str = "rms_norm") -> None:
    assert got.shape == want.shape
    tolerance = ops.load_spec(op).tolerances[str(got.dtype).removeprefix("torch.")]
    assert ((got.double() - want).abs() <= tolerance.atol + tolerance.rtol * want.abs()).all()


def test_the_schemas_are_torch_npus_own_in_torchs_words():
    for name, facts in OPERATORS.items():
        stated = torch._C.parse_schema(f"npu::{facts['schema']}")
        assert str(getattr(torch.ops.npu, name).default._schema) == str(stated)
        assert len(stated.returns) == len(facts["results"])


@pytest.mark.parametrize("dtype", [F32, torch.float16, torch.bfloat16])
def test_swiglu_is_swish_of_the_first_half_times_the_second(dtype):
    x = torch.randn(5, 24, dtype=dtype)
    close(torch.ops.npu.npu_swiglu(x, dim=-1), exact("silu_and_mul", None, x)[0], "silu_and_mul")
    other = torch.ops.npu.npu_swiglu(x.t().contiguous(), dim=0).t()
    close(other, exact("silu_and_mul", None, x)[0], "silu_and_mul")


@pytest.mark.parametrize(("approximate", "op"), [(0, "gelu_and_mul"), (1, "gelu_tanh_and_mul")])
def test_geglu_takes_the_first_half_with_activate_left_and_the_second_without(approximate, op):
    x = torch.randn(5, 24)
    swapped_halves = torch.cat((x[:, 12:], x[:, :12]), dim=-1)
    for activate_left, seen in ((True, x), (False, swapped_halves)):
        out, gelu = torch.ops.npu.npu_geglu(x, dim=-1, approximate=approximate, activate_left=activate_left)
        close(out, exact(op, None, seen)[0], op)
        ones = torch.cat((seen[:, :12], torch.ones(5, 12)), dim=-1)
        close(gelu, exact(op, None, ones)[0], op)


@pytest.mark.parametrize("dtype", [F32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("function", "op"), [("npu_rms_norm", "rms_norm"), ("npu_gemma_rms_norm", "gemma_rms_norm")])
def test_the_norms_give_y_and_the_reciprocal_root_mean_square(function, op, dtype):
    x, gamma = torch.randn(2, 3, 32, dtype=dtype), torch.randn(32, dtype=dtype)
    y, rstd = getattr(torch.ops.npu, function)(x, gamma, 1e-3)
    close(y, exact(op, SimpleNamespace(weight=gamma, variance_epsilon=1e-3), x)[0], op)
    close(rstd, 1 / torch.sqrt(x.double().square().sum(-1, keepdim=True) / 32 + 1e-3))
    assert rstd.shape == (2, 3, 1)


def test_the_epsilon_that_is_left_out_is_a_millionth():
    x, gamma = torch.full((2, 4), 1e-3), torch.ones(4)
    close(torch.ops.npu.npu_rms_norm(x, gamma)[0], torch.full((2, 4), 0.5**0.5, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [F32, torch.float16, torch.bfloat16])
def test_the_fused_norm_gives_y_rstd_and_the_sum_and_writes_to_nothing(dtype):
    x1, x2, gamma = torch.randn(5, 32, dtype=dtype), torch.randn(5, 32, dtype=dtype), torch.randn(32, dtype=dtype)
    before = x1.clone(), x2.clone()
    y, _, total = torch.ops.npu.npu_add_rms_norm(x1, x2, gamma, 1e-5)
    want = exact("rms_norm", SimpleNamespace(weight=gamma, variance_epsilon=1e-5), x1, x2)
    close(y, want[0])
    close(total, want[1])
    assert torch.equal(x1, before[0])
    assert torch.equal(x2, before[1])


def angles(rotary_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    table = torch.outer(torch.arange(16.0), 50.0 ** -(torch.arange(0.0, rotary_dim, 2) / rotary_dim))
    return table.cos(), table.sin()


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor, interleaved: bool):
    return exact("rotary_embedding", None, x, x, cos, sin, positions, interleaved)[0]


@pytest.mark.parametrize("mode", ["half", "interleave"])
def test_rotary_mul_is_r1_x_plus_r2_turned_x(mode):
    x, positions = torch.randn(6, 3, 20), torch.randint(0, 16, (6,))
    cos, sin = angles(20)
    wide = [
        (torch.cat((r, r), -1) if mode == "half" else r.repeat_interleave(2, -1))[None, :, None]
        for r in (cos[positions], sin[positions])
    ]
    out = torch.ops.npu.npu_rotary_mul(x[None], *wide, mode)[0]
    close(out, rotated(x, cos, sin, positions, mode == "interleave"), "rotary_embedding")


def test_apply_rotary_writes_to_query_and_key_and_returns_the_same_numbers():
    cos, sin = angles(64)
    positions = torch.randint(0, 16, (6,))
    query, key = torch.randn(1, 6, 3, 64), torch.randn(1, 6, 2, 64)
    want = [rotated(x[0], cos, sin, positions, False) for x in (query, key)]
    wide = [torch.cat((r, r), -1)[None, :, None] for r in (cos[positions], sin[positions])]
    out = torch.ops.npu.npu_apply_rotary_pos_emb(query, key, *wide)
    for one, given, exactly in zip(out, (query, key), want, strict=True):
        close(one[0], exactly, "rotary_embedding")
        assert torch.equal(one, given)


@pytest.mark.parametrize("rotary_dim", [32, 64])
@pytest.mark.parametrize("mode", ["half", "interleave"])
def test_mrope_with_plain_positions_is_rotary_embedding_of_part_of_the_head(mode, rotary_dim):
    cos, sin = angles(rotary_dim)
    positions = torch.randint(0, 16, (6,))
    query, key = torch.randn(6, 3, 64), torch.randn(6, 2, 64)
    out = torch.ops.npu.npu_mrope(
        positions, query.flatten(1), key.flatten(1), torch.cat((cos, sin), -1), 64, rotary_mode=mode
    )
    for one, x in zip(out, (query, key), strict=True):
        close(one.view(x.shape), rotated(x, cos, sin, positions, mode == "interleave"), "rotary_embedding")


@pytest.mark.parametrize(
    ("function", "args", "what"),
    [
        ("npu_rms_norm", (torch.ones(3, 4), torch.ones(5)), "gamma is the last dimensions"),
        ("npu_rms_norm", (torch.ones(3, 4), torch.ones(4).half()), "gamma of self's dtype"),
        ("npu_gemma_rms_norm", (torch.ones(4, 3).t(), torch.ones(4)), "contiguous"),
        ("npu_add_rms_norm", (torch.ones(3, 4), torch.ones(3, 4).half(), torch.ones(4)), "x2 of x1's shape and dtype"),
        ("npu_rotary_mul", (torch.ones(1, 2, 1, 896), *[torch.ones(1, 2, 1, 896)] * 2), "even and < 896"),
        ("npu_apply_rotary_pos_emb", (*[torch.ones(1, 2, 1, 96)] * 4,), "D 64 or 128"),
        ("npu_mrope", (torch.arange(2), *[torch.ones(2, 24)] * 2, torch.ones(4, 24), 24), "multiples of 16"),
        ("npu_mrope", (torch.arange(2).int(), *[torch.ones(2, 32)] * 2, torch.ones(4, 32), 32), "positions int64"),
        ("npu_swiglu", (torch.ones(2, 4).double(),), "dtypes"),
    ],
)
def test_what_the_documentation_excludes_is_refused(function, args, what):
    with pytest.raises(OutsideTheDocumentation, match=what):
        getattr(torch.ops.npu, function)(*args)
