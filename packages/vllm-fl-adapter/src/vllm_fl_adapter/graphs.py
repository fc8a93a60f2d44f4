# SPDX-License-Identifier: Apache-2.0
"""Which parts of a model vLLM compiles, and what became of our sites in there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fl_dispatch import Site

TRACED = "traced in this process"
FROM_CACHE = "loaded from vLLM's compile cache"
NOT_COMPILED = "not compiled so far"


@dataclass(frozen=True)
class CompiledModule:
    """A module that vLLM hands to ``torch.compile``, with our sites below it."""

    module: Any
    sites: tuple[Site, ...]

    @property
    def name(self) -> str:
        """Its class."""
        return type(self.module).__name__

    def state(self) -> str:
        """What happened to it."""
        if getattr(self.module, "was_aot_compile_fn_loaded_from_disk", False):
            return FROM_CACHE
        return TRACED if any(site.graphs for site in self.sites) else NOT_COMPILED

    def count_cached(self) -> None:
        """A graph from the cache was traced in another process with the same fingerprint: its sites are the same."""
        if self.state() == FROM_CACHE:
            for site in self.sites:
                site.graphs = site.graphs or 1

    def skipped(self) -> list[Site]:
        """Sites that neither the graph holds nor anybody called."""
        if self.state() == NOT_COMPILED:
            return []
        return [site for site in self.sites if not site.graphs and not any(part.calls for part in site.leaves())]


def compiled_roots(models: Iterable[Any], mode: str) -> list[Any]:
    """The outermost modules that vLLM compiles.

    Args:
        models: the models of a worker.
        mode: the name of vLLM's compilation mode.
    """
    if mode == "NONE":
        return []
    if mode == "STOCK_TORCH_COMPILE":
        return list(models)
    roots: list[Any] = []
    inside: set[int] = set()
    for model in models:
        for module in model.modules():
            # What vLLM's class decorator sets on each instance.
            if getattr(module, "do_not_compile", True) is False and id(module) not in inside:
                roots.append(module)
                inside.update(map(id, module.modules()))
    return roots


def describe(modules: Sequence[CompiledModule]) -> dict[str, str]:
    """Module class to what happened to it, for the report."""
    return {compiled.name: compiled.state() for compiled in modules}
