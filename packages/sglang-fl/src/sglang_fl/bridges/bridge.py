# SPDX-License-Identifier: Apache-2.0
"""``Bridge``: how one SGLang layer class maps to a standard operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fl_dispatch import Site

Forward = Callable[..., Any]


@dataclass(frozen=True)
class Bridge:
    """One layer class.

    Args:
        layer: dotted name of the class.
        operators: the operators its instances may map to.
        operator: picks one of them for an instance.
        outside: the reason to leave an instance to SGLang, or None when the operator's contract covers it.
        make: ``make(layer, site, native)`` builds the function that, bound to a layer, takes the place of SGLang's
            method: argument translation and guard in one. ``native`` is SGLang's own method as a function of the layer,
            for single calls outside the contract. What is built must read the layer it is called with, not ``layer``:
            a deep copy of a layer brings the function along, bound to the copy.
        parameters: names of the parameters of SGLang's forward that it understands.
        standard: turns SGLang's method, a function of the layer, into one with the operator's standard signature.
        arguments: SGLang's arguments, from the operator's without ``obj``.
    """

    layer: str
    operators: tuple[str, ...]
    operator: Callable[[Any], str]
    outside: Callable[[Any], str | None]
    make: Callable[[Any, Site, Forward], Forward]
    parameters: frozenset[str]
    standard: Callable[[Forward], Forward] = lambda native: native
    arguments: Callable[..., tuple[Any, ...]] = lambda *standard: standard
