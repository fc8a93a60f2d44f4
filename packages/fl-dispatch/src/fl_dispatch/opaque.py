# SPDX-License-Identifier: Apache-2.0
"""Implementations that Dynamo cannot trace, as operators of ``torch.library``.

Most kernels' Python is such (loggers, foreign extensions). The operator has a flat signature,
``torch.ops.fl_dispatch.NAME(tensors and scalars of the call..., fields of obj...)``: the layer itself cannot enter a graph,
so the implementation gets a small stand-in for ``obj`` with exactly the fields of the operator's specification. An
operator may not return its inputs: what the implementation writes in place is an output by mutation only, and the wrapper
around the operator returns those arguments in its place.

Eager code does not come here: the operator costs some microseconds a call.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fl_dispatch.limits import describe_arguments
from fl_dispatch.ops.spec import OpSpec
from fl_dispatch.types import OpImpl

_LIBRARY: Any = torch.library.Library(  # type: ignore[no-untyped-call]  # as torch has it
    "fl_dispatch", "FRAGMENT"
)
_SCHEMA_TYPES: dict[Any, str] = {torch.Tensor: "Tensor", bool: "bool", int: "SymInt", float: "float", str: "str"}
_INPLACE = "inplace"


class _StandIn:
    """``obj`` inside the operator: the fields of the specification and nothing else."""

    def __init__(self, operator: str, fields: dict[str, Any]) -> None:
        self.__dict__.update(fields)
        self.__dict__["_operator"] = operator

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"obj.{name} was read, which is no field of {self._operator}: in a compiled graph an implementation has only the "
            "fields of the operator's specification"
        )


@dataclass(frozen=True)
class _Variant:
    """The operator for calls in which certain optional arguments are given.

    ``results`` has one entry a result: the name of the argument that holds it, or None for the operator's next output.
    """

    overload: Any
    results: tuple[str | None, ...]


# -- schema


def argument_types(spec: OpSpec) -> dict[str, tuple[str, bool]]:
    """Name to (schema type, optional) of every standard argument but ``obj``; raises TypeError for a type no schema has."""
    hints = typing.get_type_hints(spec.reference)
    found: dict[str, tuple[str, bool]] = {}
    for name in spec.parameters[1:]:
        hint = hints.get(name)
        choices = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        kinds = [choice for choice in choices if choice is not types.NoneType]
        if len(kinds) != 1 or kinds[0] not in _SCHEMA_TYPES:
            raise TypeError(
                f"argument {name!r} of {spec.name} is annotated {hint!r}, which no operator schema can hold"
            )
        found[name] = (_SCHEMA_TYPES[kinds[0]], len(kinds) != len(choices))
    return found


def field_types(spec: OpSpec, obj: Any) -> dict[str, str]:
    """Name to schema type of the fields this layer has; those that are None are left out and stay None."""
    found = {}
    for field in spec.fields:
        value = getattr(obj, field.name, field.default)
        if value is ...:
            raise TypeError(f"the layer has no {field.name!r}")
        if value is None:
            continue
        kind = torch.Tensor if isinstance(value, torch.Tensor) else type(value)
        if kind not in _SCHEMA_TYPES:
            raise TypeError(f"field {field.name!r} is {kind.__name__}, which no operator schema can hold")
        found[field.name] = _SCHEMA_TYPES[kind]
    return found


def _results(spec: OpSpec, impl: OpImpl, given: Sequence[str], inplace: bool) -> tuple[str | None, ...]:
    """Where each result of a call is found.

    A standard operator that may mutate has one result for each of those arguments that is given, in their order; where one of
    them is missing it may not write to the others (``rms_norm`` without a residual), and neither with ``inplace=False``.
    """
    writable = [name for name in spec.parameters if name in spec.may_mutate]
    present = [name for name in writable if name in given]
    if not inplace or present != writable:
        return (None,) * max(1, len(present))
    mutates = spec.may_mutate if impl.mutates is None else impl.mutates
    return tuple(name if name in mutates else None for name in present) or (None,)


# -- operators

#: The latest implementation behind each operator; an id is registered again by tests and by a second manager.
_behind: dict[str, OpImpl] = {}
_variants: dict[str, _Variant] = {}


def _variant(impl: OpImpl, spec: OpSpec, obj: Any, absent: frozenset[str], inplace: bool) -> _Variant:
    """Define the operator of one pattern of given arguments, or find it. The name holds all that its schema depends on."""
    arguments = {name: kind for name, (kind, _) in argument_types(spec).items() if name not in absent}
    fields = field_types(spec, obj)
    results = _results(spec, impl, tuple(arguments), inplace)
    mutated = [name for name in results if name is not None]
    letters = dict(zip(mutated, "abcdefgh", strict=False))
    terms = [f"{kind}({letters[n]}!) {n}" if n in letters else f"{kind} {n}" for n, kind in arguments.items()]
    terms += [f"{kind} obj_{name}" for name, kind in fields.items()]
    fresh = len(results) - len(mutated)
    returns = "Tensor" if fresh == 1 else f"({', '.join(['Tensor'] * fresh)})"
    schema = f"({', '.join(terms)}) -> {returns}"
    digest = hashlib.sha256(f"{impl.impl_id}{schema}{results}".encode()).hexdigest()[:8]
    name = f"{spec.name}__{re.sub(r'[^0-9A-Za-z]', '_', impl.impl_id)}__{digest}"
    _behind[name] = impl
    if name not in _variants:
        run = _body(name, spec, tuple(arguments), tuple(fields), results)
        _LIBRARY.define(name + schema, tags=(torch.Tag.needs_fixed_stride_order,))
        _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
        torch.library.register_fake(
            f"fl_dispatch::{name}", _fake(spec, tuple(arguments), tuple(fields), results), lib=_LIBRARY
        )
        _variants[name] = _Variant(getattr(torch.ops.fl_dispatch, name).default, results)
    return _variants[name]


def _call(
    function: Callable[..., Any], spec: OpSpec, arguments: Sequence[str], fields: Sequence[str], flat: Sequence[Any]
) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
    """Call with the standard signature from flat values; returns the results and the arguments by name."""
    by_name = dict(zip(arguments, flat, strict=False))
    values = {**spec.field_defaults, **dict(zip(fields, flat[len(arguments) :], strict=True))}
    out = function(_StandIn(spec.name, values), *(by_name.get(name) for name in spec.parameters[1:]))
    return (out if isinstance(out, tuple) else (out,)), by_name


def _outputs(fresh: Sequence[torch.Tensor]) -> Any:
    return (fresh[0] if len(fresh) == 1 else tuple(fresh)) if fresh else None


def _body(
    name: str, spec: OpSpec, arguments: tuple[str, ...], fields: tuple[str, ...], results: tuple[str | None, ...]
) -> Callable[..., Any]:
    def run(*flat: Any) -> Any:
        outputs, given = _call(_behind[name].fn, spec, arguments, fields, flat)
        inputs = [value for value in given.values() if isinstance(value, torch.Tensor)]
        fresh = []
        for holder, output in zip(results, outputs, strict=True):
            if holder is None:
                fresh.append(_owned(output, inputs))
            elif output is not given[holder]:
                given[holder].copy_(output)
        return _outputs(fresh)

    return run


def _owned(output: torch.Tensor, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """Contiguous, as the graph takes it to be, and no part of an input, which an operator may not return."""
    storage = output.untyped_storage().data_ptr()
    if any(storage == other.untyped_storage().data_ptr() for other in inputs):
        return output.clone(memory_format=torch.contiguous_format)
    return output.contiguous()


def _fake(
    spec: OpSpec, arguments: tuple[str, ...], fields: tuple[str, ...], results: tuple[str | None, ...]
) -> Callable[..., Any]:
    """Shapes and dtypes are the reference's."""

    def fake(*flat: Any) -> Any:
        outputs, given = _call(spec.reference, spec, arguments, fields, flat)
        if len(outputs) != len(results):
            raise TypeError(f"{spec.name} has {len(outputs)} results here, {len(results)} were expected")
        for holder, output in zip(results, outputs, strict=True):
            if holder is not None and (output.dtype, output.dim()) != (given[holder].dtype, given[holder].dim()):
                raise TypeError(
                    f"{spec.name}({describe_arguments(flat, {})}) has a result of {output.dtype} that cannot be in place of "
                    f"{holder!r}"
                )
        fresh = [output for holder, output in zip(results, outputs, strict=True) if holder is None]
        return _outputs([torch.empty(one.shape, dtype=one.dtype, device=one.device) for one in fresh])

    return fake


# -- what graphs call


def opaque_form(impl: OpImpl, spec: OpSpec, obj: Any) -> Callable[..., Any]:
    """The implementation as a function with the standard signature that calls its operator, for layers like ``obj``.

    Raises:
        TypeError: no schema can hold the operator's arguments or the layer's fields.
    """
    parameters = spec.parameters[1:]
    standard = [spec.signature.parameters[name].default for name in parameters]
    optional = tuple(name for name, (_, may_be_none) in argument_types(spec).items() if may_be_none)
    fields = tuple(field_types(spec, obj))
    defaults = spec.field_defaults
    table = {
        (tuple(name in absent for name in optional), inplace): _variant(impl, spec, obj, absent, inplace)
        for absent in _subsets(optional)
        for inplace in ((True, False) if _INPLACE in parameters else (True,))
    }

    def flat(obj: Any, *args: Any, **kwargs: Any) -> Any:
        values = dict(zip(parameters, args, strict=False))
        for name, default in zip(parameters, standard, strict=True):
            if name not in values:
                values[name] = kwargs.get(name, default)
        variant = table[tuple(values[name] is None for name in optional), bool(values.get(_INPLACE, True))]
        given = [value for value in values.values() if value is not None]
        given += [getattr(obj, name, defaults.get(name)) for name in fields]
        outputs = variant.overload(*given)
        if len(variant.results) == 1:
            return outputs if variant.results[0] is None else values[variant.results[0]]
        fresh = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
        return tuple(fresh.pop(0) if name is None else values[name] for name in variant.results)

    return flat


def _subsets(names: Sequence[str]) -> Iterator[frozenset[str]]:
    for count in range(len(names) + 1):
        yield from (frozenset(chosen) for chosen in itertools.combinations(names, count))
