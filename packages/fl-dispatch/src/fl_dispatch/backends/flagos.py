# SPDX-License-Identifier: Apache-2.0
"""FlagGems (Triton) as the default backend. FlagGems is imported only when a decision needs it, where operators run.

Only public FlagGems functions are used, those of ``FUNCTIONS``. All of them log through ``logging``, on which Dynamo
breaks, so none is traceable: in a compiled graph they are opaque operators. Triton compiles and tunes a kernel on the
first call with new dtypes or sizes: call once before a graph is captured, as frameworks do.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fl_dispatch.backends import Backend
from fl_dispatch.config import USE_FLAGGEMS, flaggems_wanted
from fl_dispatch.facts import default_device_type
from fl_dispatch.registry import OpRegistry
from fl_dispatch.types import BackendImplKind, OpImpl

if TYPE_CHECKING:
    from torch import Tensor

#: What is called of FlagGems.
FUNCTIONS = (
    "swiglu",
    "silu_and_mul_out",
    "geglu",
    "gelu_and_mul",
    "rms_norm",
    "fused_add_rms_norm",
    "apply_rotary_pos_emb",
)

#: torch's names of the devices FlagGems has a backend for; of its CPU backend (Arm) nothing is known here.
DEVICES = frozenset({"cuda", "npu", "mlu", "musa", "gcu", "aipu", "ptpu", "txda"})


def import_fault() -> str | None:
    """Why FlagGems is not to be or cannot be imported here; None when it was. ``USE_FLAGGEMS=0``: not even tried."""
    if not flaggems_wanted():
        return f"switched off by {USE_FLAGGEMS}=0"
    if importlib.util.find_spec("flag_gems") is None:
        if default_device_type() == "cpu":
            return "flag_gems is not installed; it needs an accelerator, and there is none here"
        # Its requirements pin numpy and others exactly, which would exchange those of the framework.
        return "flag_gems is not installed; pip install --no-deps flag-gems sqlalchemy greenlet"
    try:
        import flag_gems  # noqa: F401  (whether it can be)
    except Exception as error:  # noqa: BLE001  (RuntimeError, AssertionError, AttributeError: it has no one type for this)
        return f"flag_gems does not import here: {type(error).__name__}: {error}".splitlines()[0]
    return None


def register_all(library: Any) -> None:
    """Have FlagGems register every ATen operator it has for this device with a ``torch.library.Library``."""
    import flag_gems

    flag_gems.enable(lib=library, unused=[], record=False)


class _Gated:
    """A gated activation by the better of two FlagGems functions.

    ``whole`` takes rows as they are, ``halves`` two views of them. On an H200, in bfloat16 with rows of 2 x 14336, ``whole``
    costs the host a third (about 30 us a call instead of 90) and the device 5.8 us instead of 4.3 at 64 rows, 188 instead of 341
    at 8192. So a captured graph, which costs the host nothing, has ``halves`` for few rows. Both have run then: Triton compiles
    for a form of x on its first call, which a capture does not allow.

    ``whole`` is for CUDA only, runs on the current device and counts in 32 bits; where that will not do, ``halves`` runs.
    """

    #: Elements of x up to which ``halves`` is faster on the device.
    FEW = 2**22
    _INT32 = 2**31

    def __init__(self, whole: Callable[[Tensor], Tensor], halves: Callable[[Tensor], Tensor]) -> None:
        import torch

        self._whole = whole
        self._halves = halves
        self._current_device = torch.cuda.current_device
        self._capturing = torch.cuda.is_current_stream_capturing
        self._compiled: set[tuple[Any, ...]] = set()

    def __call__(self, x: Tensor) -> Tensor:
        elements, device = x.numel(), x.get_device()
        if not x.is_cuda or elements >= self._INT32 or device != self._current_device():
            return self._halves(x)
        if elements <= self.FEW:
            # What Triton compiles for: per device, for strides of 1 and multiples of 16, for addresses that are aligned.
            form = (device, x.dtype, x.shape, x.stride(), x.data_ptr() % 16)
            if self._capturing():
                if form in self._compiled:
                    return self._halves(x)
            elif form not in self._compiled:
                self._halves(x)
                self._compiled.add(form)
        return self._whole(x)


class FlagosBackend(Backend):
    """The operators on FlagGems. ``unavailable_reason`` gives FlagGems' own words when it cannot be used."""

    def __init__(self) -> None:
        self._reason: str | None = None

    @property
    def name(self) -> str:
        """The policy token of this backend."""
        return "flagos"

    def is_available(self) -> bool:
        """Whether FlagGems imports here; asked once."""
        self._reason = self._find_fault()
        return self._reason is None

    def unavailable_reason(self) -> str | None:
        """What ``is_available`` found."""
        return self._reason

    @staticmethod
    def _find_fault() -> str | None:
        reason = import_fault()
        if reason is not None:
            return reason
        import flag_gems

        absent = [name for name in FUNCTIONS if not callable(getattr(flag_gems, name, None))]
        if absent:
            version = getattr(flag_gems, "__version__", "of unknown version")
            return f"the installed flag_gems ({version}) has no {', '.join(absent)}; FlagGems 5.0.2 or newer is needed"
        return None

    @functools.cached_property
    def gems(self) -> Any:
        """The module flag_gems, imported on first use; later uses are an attribute of the instance."""
        import flag_gems

        return flag_gems

    @functools.cached_property
    def _silu(self) -> _Gated:
        def halves(x: Tensor) -> Tensor:  # the form without _out goes through autograd, for the same kernel
            gate, up = x.chunk(2, dim=-1)
            out = x.new_empty(gate.shape)
            self.gems.silu_and_mul_out(gate, up, out)
            return out

        return _Gated(self.gems.swiglu, halves)

    @functools.cached_property
    def _gelu_tanh(self) -> _Gated:
        def halves(x: Tensor) -> Tensor:
            gate, up = x.chunk(2, dim=-1)
            return self.gems.gelu_and_mul(gate, up, approximate="tanh")  # type: ignore[no-any-return]

        return _Gated(self.gems.geglu, halves)

    def silu_and_mul(self, obj: Any, x: Tensor) -> Tensor:
        """``flag_gems.swiglu`` or ``silu_and_mul_out`` on the two halves, see ``_Gated``; x is not written to."""
        return self._silu(x)

    def gelu_and_mul(self, obj: Any, x: Tensor) -> Tensor:
        """``flag_gems.gelu_and_mul``, exact, on the two halves; x is not written to."""
        gate, up = x.chunk(2, dim=-1)
        return self.gems.gelu_and_mul(gate, up, approximate="none")  # type: ignore[no-any-return]

    def gelu_tanh_and_mul(self, obj: Any, x: Tensor) -> Tensor:
        """``flag_gems.geglu`` or ``gelu_and_mul`` on the two halves, see ``_Gated``; x is not written to."""
        return self._gelu_tanh(x)

    def rms_norm(self, obj: Any, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """``flag_gems.rms_norm`` into a new tensor; with a residual ``fused_add_rms_norm``, which overwrites both."""
        shape = (x.shape[-1],)
        if residual is None:
            return self.gems.rms_norm(x, shape, obj.weight, obj.variance_epsilon)  # type: ignore[no-any-return]
        self.gems.fused_add_rms_norm(x, residual, shape, obj.weight, obj.variance_epsilon)
        return x, residual

    def rotary_embedding(
        self,
        obj: Any,
        query: Tensor,
        key: Tensor,
        cos: Tensor,
        sin: Tensor,
        position_ids: Tensor,
        rotary_interleaved: bool = False,
        inplace: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """``flag_gems.apply_rotary_pos_emb`` into new tensors; query and key are not written to.

        Never in place, though it offers that: different threads of its kernel then read and overwrite both elements of
        a pair, with nothing that makes one wait for the other.
        """
        return self.gems.apply_rotary_pos_emb(  # type: ignore[no-any-return]
            query, key, cos, sin, position_ids, rotary_interleaved, False
        )


def _fused_in_place(obj: Any, x: Tensor, residual: Tensor | None = None) -> bool | str:
    # It writes in place only where both are contiguous, else into copies that it drops.
    if residual is None or (residual.dtype == x.dtype and residual.is_contiguous() and x.is_contiguous()):
        return True
    if residual.dtype != x.dtype:
        return f"needs one dtype, x is {x.dtype} and residual {residual.dtype}"
    return "with a residual, needs contiguous x and residual"


def _full_rotary(
    obj: Any,
    query: Tensor,
    key: Tensor,
    cos: Tensor,
    sin: Tensor,
    position_ids: Tensor,
    rotary_interleaved: bool = False,
    inplace: bool = True,
) -> bool | str:
    if cos.shape[-1] * 2 != query.shape[-1]:
        return f"rotates whole heads only: rotary_dim {cos.shape[-1] * 2}, head size {query.shape[-1]}"
    if not (query.numel() and key.numel()):
        return "needs at least one token and one head"
    if cos.stride(-1) != 1 or sin.stride(-1) != 1:
        return "needs cos and sin with contiguous rows"
    return True


_NONE: frozenset[str] = frozenset()
#: What each operator declares besides name and function. Products with the norm's weight are float32 and then cast.
_DECLARED: dict[str, dict[str, Any]] = {
    "silu_and_mul": {"mutates": _NONE, "reads": _NONE},
    "gelu_and_mul": {"mutates": _NONE, "reads": _NONE},
    "gelu_tanh_and_mul": {"mutates": _NONE, "reads": _NONE},
    "rms_norm": {
        "mutates": frozenset({"x", "residual"}),
        "reads": frozenset({"weight", "variance_epsilon"}),
        "honours": {"cast_x_before_out_mul": frozenset({False})},
        "supports": _fused_in_place,
    },
    "rotary_embedding": {"mutates": _NONE, "reads": _NONE, "supports": _full_rotary},
}


def register(registry: OpRegistry) -> None:
    """Add FlagGems' implementations; none of this imports FlagGems."""
    backend = FlagosBackend()
    for op_name, declared in _DECLARED.items():
        registry.register(
            OpImpl(
                op_name=op_name,
                impl_id="flagos",
                kind=BackendImplKind.DEFAULT,
                fn=getattr(backend, op_name),
                available=backend.is_available,
                dtypes=frozenset({"float16", "bfloat16", "float32"}),
                devices=DEVICES,
                traceable=False,
                capture_safe=True,
                **declared,
            )
        )
