# SPDX-License-Identifier: Apache-2.0
"""``Bridge``: how one vLLM layer class maps to a standard operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from fl_dispatch import Site

Forward = Callable[..., Any]


@dataclass(frozen=True)
class Bridge:
    """One layer class.

    Args:
        module: where vLLM defines it.
        layer: its name, by which vLLM looks replacements up.
        operators: the operators its instances may map to.
        operator: picks one of them for an instance.
        outside: the reason to leave an instance to vLLM, or None when the operator's contract covers it.
        eager: ``eager(layer, site, native)`` builds the method ``forward(self, ...)`` that takes the place of vLLM's:
            argument translation and guard in one function. ``native`` is vLLM's own method, for single calls outside the
            contract.
        traced: ``traced(layer, call, native)`` builds the same for ``torch.compile`` to trace: ``call`` is what the graph runs.
        standard: turns vLLM's method, a function of the layer, into one with the operator's standard signature.
        arguments: vLLM's arguments, from the operator's without ``obj``.
        attributes: class attributes of the replacement: optional fields of ``obj`` that say how vLLM rounds, and in
            ``fl_wishes`` which of them an implementation may round otherwise than.
    """

    module: str
    layer: str
    operators: tuple[str, ...]
    operator: Callable[[Any], str]
    outside: Callable[[Any], str | None]
    eager: Callable[[Any, Site, Forward], Forward]
    traced: Callable[[Any, Forward, Forward], Forward]
    standard: Callable[[Forward], Forward] = lambda native: native
    arguments: Callable[..., tuple[Any, ...]] = lambda *standard: standard
    attributes: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
