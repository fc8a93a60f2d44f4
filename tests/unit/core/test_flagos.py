# SPDX-License-Identifier: Apache-2.0
"""The FlagGems backend with stand-ins for FlagGems: why it cannot be used, and how its functions are called."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace

import pytest
import torch

from fl_dispatch import OpRegistry
from fl_dispatch.backends import flagos
from fl_dispatch.facts import unavailable_reason

FUNCTIONS = """
import torch
from torch.nn.functional import gelu, silu
__version__ = "5.0.2"
calls = []
def swiglu(x, quantizer=None):
    calls.append(("swiglu", x))
    return "from swiglu"
def geglu(x, quantizer=None):
    calls.append(("geglu", x))
    return "from geglu"
def silu_and_mul_out(A, B, out):
    calls.append(("silu_and_mul_out", A.shape, B.shape))
    out.copy_(silu(A) * B)
    return out
def gelu_and_mul(x, y, approximate="none"):
    calls.append(("gelu_and_mul", approximate))
    return gelu(x, approximate=approximate) * y
def rms_norm(x, normalized_shape, weight, eps=1e-5):
    calls.append(("rms_norm", tuple(normalized_shape), eps))
    return torch.nn.functional.rms_norm(x, normalized_shape, weight, eps)
def fused_add_rms_norm(x, residual, normalized_shape, weight, eps=1e-5):
    calls.append(("fused_add_rms_norm", tuple(normalized_shape), eps))
    residual.add_(x)
    x.copy_(torch.nn.functional.rms_norm(residual, normalized_shape, weight, eps))
    return x, residual
def apply_rotary_pos_emb(q, k, cos, sin, position_ids=None, rotary_interleaved=False, inplace=False):
    calls.append(("apply_rotary_pos_emb", rotary_interleaved, inplace))
    return q.clone(), k.clone()
"""


@pytest.fixture
def gems(tmp_path, monkeypatch):
    """Writes a package flag_gems with the given source, to be found first."""

    def write(source):
        (tmp_path / "flag_gems").mkdir()
        (tmp_path / "flag_gems" / "__init__.py").write_text(source)
        importlib.invalidate_caches()

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("USE_FLAGGEMS", raising=False)
    monkeypatch.delitem(sys.modules, "flag_gems", raising=False)
    yield write
    sys.modules.pop("flag_gems", None)


def impls():
    registry = OpRegistry()
    flagos.register(registry)
    return {op: found[0] for op, found in registry.snapshot().items() if found}


def reason():
    answers = {unavailable_reason(impl.available) for impl in impls().values()}
    (answer,) = answers
    return answer


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("raise RuntimeError('No device were detected on your machine !')", "RuntimeError: No device were detected"),
        (
            "raise AssertionError('Torch not compiled with CUDA enabled')",
            "AssertionError: Torch not compiled with CUDA",
        ),
        ("import torch; torch.no_such_device", "AttributeError: module 'torch' has no attribute 'no_such_device'"),
        ("raise RuntimeError('vendor not found: acme\\nmore')", "RuntimeError: vendor not found: acme"),
        ("import no_such_dependency_of_gems", "ModuleNotFoundError: No module named 'no_such_dependency_of_gems'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_whatever_its_import_raises_is_a_reason_in_one_line(gems, source, found):
    gems(source)
    text = reason()
    assert found in text
    assert "\n" not in text


def test_another_package_of_that_name_is_a_reason(gems):
    gems("__version__ = '0.1'\ndef rms_norm(): pass")
    assert reason() == (
        "the installed flag_gems (0.1) has no swiglu, silu_and_mul_out, geglu, gelu_and_mul, "
        "fused_add_rms_norm, apply_rotary_pos_emb; FlagGems 5.0.2 or newer is needed"
    )


@pytest.mark.parametrize(
    ("device", "remedy"),
    [
        ("cuda", "pip install --no-deps flag-gems sqlalchemy greenlet"),
        ("cpu", "it needs an accelerator, and there is none here"),
    ],
)
def test_not_installed_is_a_reason_with_a_remedy_where_there_is_one(monkeypatch, device, remedy):
    monkeypatch.delenv("USE_FLAGGEMS", raising=False)
    monkeypatch.setattr(flagos.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(flagos, "default_device_type", lambda: device)
    assert reason() == f"flag_gems is not installed; {remedy}"


def test_switched_off_is_a_reason_and_nothing_is_imported(gems, monkeypatch):
    gems("raise RuntimeError('must not be imported')")
    monkeypatch.setenv("USE_FLAGGEMS", "0")
    assert reason() == "switched off by USE_FLAGGEMS=0"
    assert "flag_gems" not in sys.modules


def test_registering_does_not_import_it(gems):
    gems(FUNCTIONS)
    assert set(impls()) == {"silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul", "rms_norm", "rotary_embedding"}
    assert "flag_gems" not in sys.modules


def test_it_is_available_where_it_imports(gems):
    gems(FUNCTIONS)
    assert reason() is None


def test_functions_get_the_arguments_they_are_documented_with(gems):
    gems(FUNCTIONS)
    found, x = impls(), torch.randn(3, 64)
    obj = SimpleNamespace(weight=torch.ones(64), variance_epsilon=1e-4)
    assert found["silu_and_mul"].fn(obj, x).shape == (3, 32)
    found["gelu_and_mul"].fn(obj, x)
    found["gelu_tanh_and_mul"].fn(obj, x)
    found["rms_norm"].fn(obj, x)
    assert sys.modules["flag_gems"].calls == [
        ("silu_and_mul_out", (3, 32), (3, 32)),
        ("gelu_and_mul", "none"),
        ("gelu_and_mul", "tanh"),
        ("rms_norm", (64,), 1e-4),
    ]


class OnCuda:
    """A tensor of a GPU, as far as the choice of a function looks at it."""

    is_cuda = True
    dtype = torch.bfloat16

    def __init__(self, rows=3, device=1, elements=None, gap=0, address=512):
        self.shape = torch.Size((rows, 2048))
        self._device, self._elements = device, elements or rows * 2048
        self._stride, self._address = (2048 + gap, 1), address

    def numel(self):
        return self._elements

    def get_device(self):
        return self._device

    def stride(self):
        return self._stride

    def data_ptr(self):
        return self._address

    def chunk(self, parts, dim):
        halves = torch.randn(3, 64).chunk(parts, dim=dim)
        self.new_empty = halves[0].new_empty
        return halves


@pytest.fixture
def gpu(monkeypatch):
    """The current device is 1; what it holds is whether a stream is being captured."""
    state = SimpleNamespace(capturing=False, device=1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: state.device)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: state.capturing)
    return state


def called():
    calls = [call[0] for call in sys.modules["flag_gems"].calls]
    sys.modules["flag_gems"].calls.clear()
    return calls


GATED = [("silu_and_mul", "swiglu", "silu_and_mul_out"), ("gelu_tanh_and_mul", "geglu", "gelu_and_mul")]


@pytest.mark.parametrize(("operator", "whole", "halves"), GATED)
def test_eager_calls_take_whole_rows_and_graphs_of_few_rows_the_halves(gems, gpu, operator, whole, halves):
    gems(FUNCTIONS)
    impl, few, many = impls()[operator], OnCuda(rows=2048), OnCuda(rows=2049)
    assert impl.fn(None, few) == f"from {whole}"
    assert called() == [halves, whole]  # the first call of a shape has both compiled
    assert impl.fn(None, OnCuda(rows=2048, address=4096)) == f"from {whole}"
    assert called() == [whole]
    impl.fn(None, many)
    assert called() == [whole]
    gpu.capturing = True
    assert impl.fn(None, OnCuda(rows=2048, address=4096)).shape == (3, 32)
    assert called() == [halves]
    assert impl.fn(None, many) == f"from {whole}"
    assert called() == [whole]


@pytest.mark.parametrize(("operator", "whole", "halves"), GATED)
def test_a_capture_runs_nothing_that_no_call_before_it_had_compiled(gems, gpu, operator, whole, halves):
    gems(FUNCTIONS)
    impl = impls()[operator]
    impl.fn(None, OnCuda(rows=64))
    called()
    gpu.capturing = True
    other = OnCuda(rows=64)
    other.dtype = torch.float16
    for x in (OnCuda(rows=65), other, OnCuda(rows=64, gap=8), OnCuda(rows=64, address=520)):
        assert impl.fn(None, x) == f"from {whole}"
        assert called() == [whole]
    gpu.device = 0
    assert impl.fn(None, OnCuda(rows=64, device=0)) == f"from {whole}"
    assert called() == [whole]


@pytest.mark.parametrize(("operator", "whole", "halves"), GATED)
def test_each_gpu_has_the_kernels_compiled_on_its_own_first_call(gems, gpu, operator, whole, halves):
    gems(FUNCTIONS)
    impl = impls()[operator]
    for gpu.device in (1, 0):
        impl.fn(None, OnCuda(rows=64, device=gpu.device, address=1024 + 512 * gpu.device))
        assert called() == [halves, whole]


@pytest.mark.parametrize(
    "x", [torch.randn(3, 64), OnCuda(device=0), OnCuda(elements=2**31)], ids=["no GPU", "another GPU", "64 bits"]
)
@pytest.mark.parametrize(("operator", "whole", "halves"), GATED)
def test_where_whole_rows_would_go_wrong_the_halves_are_taken(gems, gpu, x, operator, whole, halves):
    gems(FUNCTIONS)
    assert impls()[operator].fn(None, x).shape == (3, 32)
    assert called() == [halves]


def test_the_fused_norm_returns_what_it_overwrote(gems):
    gems(FUNCTIONS)
    x, residual = torch.randn(3, 64), torch.randn(3, 64)
    total = x + residual
    got = impls()["rms_norm"].fn(SimpleNamespace(weight=torch.ones(64), variance_epsilon=1e-4), x, residual)
    assert got[0] is x
    assert got[1] is residual
    assert torch.equal(residual, total)


def test_rotary_is_never_asked_to_work_in_place(gems):
    gems(FUNCTIONS)
    query = torch.randn(3, 2, 8)
    cos = torch.ones(9, 4)
    got = impls()["rotary_embedding"].fn(None, query, query, cos, cos, torch.arange(3), True, True)
    assert sys.modules["flag_gems"].calls == [("apply_rotary_pos_emb", True, False)]
    assert got[0] is not query


def test_it_is_imported_once(gems):
    gems(FUNCTIONS)
    impl = impls()["silu_and_mul"]
    impl.fn(None, torch.randn(3, 64))
    module = sys.modules.pop("flag_gems")
    impl.fn(None, torch.randn(3, 64))
    assert len(module.calls) == 2


@pytest.mark.parametrize(
    ("op", "args", "word"),
    [
        ("rms_norm", (torch.zeros(3, 8),), None),
        ("rms_norm", (torch.zeros(3, 8), torch.zeros(3, 8)), None),
        ("rms_norm", (torch.zeros(3, 8), torch.zeros(3, 16)[:, :8]), "contiguous x and residual"),
        ("rms_norm", (torch.zeros(3, 8), torch.zeros(3, 8).half()), "residual torch.float16"),
    ],
)
def test_the_fused_norm_takes_contiguous_tensors_of_one_dtype(op, args, word):
    verdict = impls()[op].supports(None, *args)
    assert verdict is True if word is None else word in verdict


@pytest.mark.parametrize(
    ("query", "cos", "word"),
    [
        (torch.zeros(3, 2, 8), torch.zeros(9, 4), None),
        (torch.zeros(3, 2, 8), torch.zeros(9, 2), "whole heads only: rotary_dim 4, head size 8"),
        (torch.zeros(0, 2, 8), torch.zeros(9, 4), "at least one token"),
        (torch.zeros(3, 2, 8), torch.zeros(4, 9).t(), "contiguous rows"),
    ],
)
def test_rotary_takes_whole_heads(query, cos, word):
    verdict = impls()["rotary_embedding"].supports(None, query, query, cos, cos, torch.arange(len(query)))
    assert verdict is True if word is None else word in verdict


def test_none_is_traceable_and_what_each_reads_is_declared():
    for impl in impls().values():
        assert not impl.traceable
        assert impl.reads is not None
