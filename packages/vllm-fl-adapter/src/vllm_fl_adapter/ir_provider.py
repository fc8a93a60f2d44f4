# SPDX-License-Identifier: Apache-2.0
"""The provider ``fl`` of ``vllm.ir``, vLLM's own interface for kernels: its two norms by our operator, where a user names it.

vLLM calls these functions outside of layers that are replaced: in norms of models' own, and in layers that were left to
vLLM. The interface is there from 0.21 on and announced to go in 0.34, so everything here is probed and nothing needs it.
"""

# No `from __future__ import annotations` here: vLLM compares our functions' schemas with its own, and reads types.

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fl_dispatch import OpManager, Site, compiled_call
from vllm_fl_adapter.bridges.norm import VLLM_ROUNDING

PROVIDER = "fl"
LABEL = "vllm.ir"
_OPERATOR = "rms_norm"
_FUNCTIONS = ("rms_norm", "fused_add_rms_norm")


@dataclass(frozen=True, slots=True)
class _Norm:
    """The layer that a call of ``vllm.ir`` stands for, as an operator's ``obj``; rounded as vLLM's RMSNorm."""

    weight: torch.Tensor | None
    variance_epsilon: float
    cast_x_before_out_mul: bool = True
    cast_x_to_weight_dtype: bool = True
    fl_wishes: tuple[str, ...] = VLLM_ROUNDING["fl_wishes"]


class IrProvider:
    """Serves ``vllm.ir`` in this process.

    Args:
        manager: decides which implementation runs.
    """

    def __init__(self, manager: OpManager) -> None:
        self._manager = manager
        #: Where each function is bound, and what it runs there.
        self._bound: dict[str, tuple[Site, Callable[..., Any]]] = {}

    def register(self) -> str | None:
        """Make the provider's name known to vLLM; safe to repeat.

        Returns:
            Why this vLLM has no such interface, or None.
        """
        try:
            from vllm.ir import ops

            functions = [getattr(ops, name) for name in _FUNCTIONS]
            for function, served, inplace in zip(
                functions, (self._rms_norm(), self._fused_add_rms_norm()), (False, True), strict=True
            ):
                if PROVIDER not in function.impls:
                    function.register_impl(PROVIDER, supports_args=_supports(function.name), inplace=inplace)(served)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            return f"no provider for vllm.ir: {type(error).__name__}: {error}"
        return None

    def bind(self, vllm_config: Any) -> None:
        """Decide for those functions whose order of providers names ours (``--ir-op-priority``).

        Raises:
            SelectionError: nothing may run under the policy.
        """
        priority = getattr(getattr(vllm_config, "kernel_config", None), "ir_op_priority", None)
        for name in _FUNCTIONS:
            if PROVIDER in (getattr(priority, name, None) or ()):
                self._bind(name)

    def _bind(self, name: str) -> None:
        like = _Norm(torch.ones(1), 1e-6)
        # vLLM's compiler traces whatever it is given, so only what can be in a graph is a candidate, in eager engines too.
        site = self._manager.bind(_OPERATOR, like, label=f"{LABEL}.{name}", traced=True)
        self._bound[name] = (site, compiled_call(site))

    def _run(self, name: str, weight: torch.Tensor | None, epsilon: float, *tensors: torch.Tensor | None) -> Any:
        site, call = self._bound[name]
        if self._manager.counts_calls:
            traced = torch.compiler.is_compiling() or isinstance(tensors[0], torch._subclasses.FakeTensor)
            site.graphs += traced
            site.calls += not traced
        return call(_Norm(weight, epsilon), *tensors)

    def _rms_norm(self) -> Any:
        def rms_norm(
            x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
        ) -> torch.Tensor:
            return self._run("rms_norm", weight, epsilon, x, None)  # type: ignore[no-any-return]

        return rms_norm

    def _fused_add_rms_norm(self) -> Any:
        def fused_add_rms_norm(
            x: torch.Tensor,
            x_residual: torch.Tensor,
            weight: torch.Tensor | None,
            epsilon: float,
            variance_size: int | None = None,
        ) -> tuple[torch.Tensor, torch.Tensor]:
            return self._run("fused_add_rms_norm", weight, epsilon, x, x_residual)  # type: ignore[no-any-return]

        return fused_add_rms_norm


def _supports(name: str) -> Any:
    """The calls that the standard operator has words for; vLLM goes on to its next provider with the others."""
    if name == "rms_norm":
        return lambda x, weight, epsilon, variance_size=None: weight is not None and variance_size is None
    return lambda x, x_residual, weight, epsilon, variance_size=None: weight is not None and variance_size is None
