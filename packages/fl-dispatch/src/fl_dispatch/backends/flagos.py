# SPDX-License-Identifier: Apache-2.0
"""FlagGems (Triton) as the default backend. FlagGems is imported only when a decision needs it, where operators run.

Only public FlagGems functions are used: ``silu_and_mul``, ``gelu_and_mul``, ``rms_norm``, ``fused_add_rms_norm`` and
``apply_rotary_pos_emb``.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from fl_dispatch.backends import Backend
from fl_dispatch.config import USE_FLAGGEMS, flaggems_wanted
from fl_dispatch.errors import NotSupported
from fl_dispatch.registry import OpRegistry
from fl_dispatch.types import BackendImplKind, OpImpl

if TYPE_CHECKING:
    from torch import Tensor


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
        if not flaggems_wanted():
            return f"switched off by {USE_FLAGGEMS}=0"
        if importlib.util.find_spec("flag_gems") is None:
            return "flag_gems is not installed; pip install 'fl-dispatch[flagos]'"
        try:
            import flag_gems  # noqa: F401
        except Exception as error:  # noqa: BLE001  (RuntimeError, AssertionError, AttributeError: it has no one type for this)
            return f"flag_gems does not import here: {type(error).__name__}: {error}".splitlines()[0]
        return None

    def silu_and_mul(self, obj: Any, x: Tensor) -> Tensor:
        """``flag_gems.silu_and_mul`` on the two halves."""
        import flag_gems

        gate, up = x.chunk(2, dim=-1)
        return flag_gems.silu_and_mul(gate, up)  # type: ignore[no-any-return]

    def gelu_and_mul(self, obj: Any, x: Tensor) -> Tensor:
        """``flag_gems.gelu_and_mul``, exact."""
        import flag_gems

        gate, up = x.chunk(2, dim=-1)
        return flag_gems.gelu_and_mul(gate, up, approximate="none")  # type: ignore[no-any-return]

    def gelu_tanh_and_mul(self, obj: Any, x: Tensor) -> Tensor:
        """``flag_gems.gelu_and_mul``, tanh approximation."""
        import flag_gems

        gate, up = x.chunk(2, dim=-1)
        return flag_gems.gelu_and_mul(gate, up, approximate="tanh")  # type: ignore[no-any-return]

    def rms_norm(self, obj: Any, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """``flag_gems.rms_norm``, with a residual ``fused_add_rms_norm``, which writes to both."""
        import flag_gems

        shape = (x.shape[-1],)
        if residual is None:
            return flag_gems.rms_norm(x, shape, obj.weight, obj.variance_epsilon)  # type: ignore[no-any-return]
        if not (x.is_contiguous() and residual.is_contiguous()):
            # It writes in place only where both are contiguous, and then returns neither as the standard wants.
            raise NotSupported("fused add needs contiguous x and residual")
        flag_gems.fused_add_rms_norm(x, residual, shape, obj.weight, obj.variance_epsilon)
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
        """``flag_gems.apply_rotary_pos_emb``."""
        import flag_gems

        return flag_gems.apply_rotary_pos_emb(  # type: ignore[no-any-return]
            query, key, cos, sin, position_ids, rotary_interleaved, inplace
        )


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
    return True


#: What each operator declares besides name and function.
_DECLARED: dict[str, dict[str, Any]] = {
    "silu_and_mul": {"mutates": frozenset()},
    "gelu_and_mul": {"mutates": frozenset()},
    "gelu_tanh_and_mul": {"mutates": frozenset()},
    "rms_norm": {"mutates": frozenset({"x", "residual"}), "honours": {"cast_x_before_out_mul": frozenset({False})}},
    "rotary_embedding": {"mutates": frozenset({"query", "key"}), "supports": _full_rotary},
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
                capture_safe=True,
                **declared,
            )
        )
