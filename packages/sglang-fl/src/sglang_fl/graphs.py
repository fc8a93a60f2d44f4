# SPDX-License-Identifier: Apache-2.0
"""What a server's graphs mean for its layers: whether device graphs are captured, and whether ``torch.compile`` traces them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fl_dispatch import OpManager

METHOD = "enter_torch_compile"


@dataclass(frozen=True)
class GraphModes:
    """What SGLang makes of the model, as its settings say.

    Args:
        captured: device graphs are captured.
        compiled: the setting by which ``torch.compile`` traces layers; None when nothing does.
    """

    captured: bool
    compiled: str | None

    def freeze(self, manager: OpManager) -> None:
        """The graphs were made: from now on they hold the present selection."""
        if self.captured or self.compiled:
            manager.freeze("a graph that SGLang captured or compiled")

    def describe(self) -> dict[str, object]:
        """For the report."""
        return {"captured": self.captured, "compiled_by": self.compiled}


def graph_modes(server_args: Any, device_type: str) -> GraphModes:
    """Read them from SGLang's settings, which went through three forms between 0.5.11 and 0.5.23."""
    phases = getattr(server_args, "cuda_graph_config", None)
    backends = {
        phase: str(getattr(getattr(phases, phase, None), "backend", "disabled")) for phase in ("decode", "prefill")
    }
    if phases is None:
        backends["decode"] = "disabled" if getattr(server_args, "disable_cuda_graph", False) else "full"
        off = getattr(server_args, "disable_piecewise_cuda_graph", True)
        backends["prefill"] = "disabled" if off else "tc_piecewise"
    if device_type == "cpu":
        # SGLang calls what it compiles for the CPU a graph; nothing is captured there.
        backends = {}
    compiled = None
    if "tc_piecewise" in backends.values():
        compiled = "piecewise CUDA graphs"
    if getattr(server_args, "enable_torch_compile", False):
        compiled = "--enable-torch-compile"
    return GraphModes(captured=any(backend != "disabled" for backend in backends.values()), compiled=compiled)


def around_enter_torch_compile(original: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
    """AROUND hook of ``enter_torch_compile``, which gives each layer its native method for the time of a compilation.

    A dispatched layer keeps its own: its implementation is traced, or goes into the graph as an opaque operator.
    """
    method = layer._forward_method
    result = original(layer, *args, **kwargs)
    if getattr(getattr(method, "__func__", None), "dispatched_by_fl", False):
        layer._forward_method = method
    return result
