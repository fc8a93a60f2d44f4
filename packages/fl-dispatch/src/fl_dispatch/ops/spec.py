# SPDX-License-Identifier: Apache-2.0
"""What a standard operator is: its signature, its reference, and what may be assumed about both."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Field:
    """A field of ``obj`` that an operator reads.

    Args:
        name: attribute name, equal in SGLang and vLLM.
        meaning: shape, dtype and role, for people.
        default: value when the layer has no such attribute; ``REQUIRED`` when it must have one.
    """

    name: str
    meaning: str
    default: Any = ...

    @property
    def required(self) -> bool:
        """Whether a layer must have it."""
        return self.default is ...


@dataclass(frozen=True)
class Tolerance:
    """How far an implementation may be from float64 mathematics in one dtype, and why that much."""

    rtol: float
    atol: float
    reason: str


@dataclass(frozen=True)
class Sample:
    """One generated call: ``fn(obj, *args, **kwargs)``; ``label`` names it in messages."""

    label: str
    obj: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OpSpec:
    """One standard operator.

    Args:
        name: the operator's name.
        reference: the PyTorch implementation that is the specification; its signature is the standard signature.
        summary: one line for listings.
        fields: the fields of ``obj`` it reads.
        may_mutate: names of the arguments that an implementation is allowed to write to.
        by_row: names of the arguments with a row for each row (token) of the results: any rows of them give the same rows of the
            results. Rows are what the first dimension of more than one counts.
        check: ``check(obj, ...)`` returns None for a well-formed call, else what is wrong with it in one sentence.
            Only called when something failed, so that a caller's mistake is not taken for a kernel's.
        samples: ``samples(dtype, device, seed)`` yields the calls that every implementation must get right.
        tolerances: by dtype name.
    """

    name: str
    reference: Callable[..., Any]
    summary: str = ""
    fields: tuple[Field, ...] = ()
    may_mutate: frozenset[str] = frozenset()
    by_row: frozenset[str] = frozenset()
    check: Callable[..., str | None] | None = None
    samples: Callable[[Any, str, int], Iterator[Sample]] | None = None
    tolerances: Mapping[str, Tolerance] = field(default_factory=dict)

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        """The standard signature. The first parameter is the layer, the second the tensor whose dtype is the call's."""
        return inspect.signature(self.reference)

    @functools.cached_property
    def parameters(self) -> tuple[str, ...]:
        """The names of the standard arguments, in order."""
        return tuple(self.signature.parameters)

    @functools.cached_property
    def field_defaults(self) -> Mapping[str, Any]:
        """What the optional fields of ``obj`` are taken to be when a layer has no such attribute."""
        return {field.name: field.default for field in self.fields if not field.required}
