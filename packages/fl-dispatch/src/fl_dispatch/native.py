# SPDX-License-Identifier: Apache-2.0
"""The token ``native``: the framework's own method as a candidate.

An adapter offers it for each layer. Where it is chosen the layer is not bound at all: it runs the framework's function,
untouched and at no cost. Elsewhere (``call_op``, ``resolve_op``) there is no such method, and it is passed over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fl_dispatch.errors import SelectionError
from fl_dispatch.types import BackendImplKind, OpImpl

if TYPE_CHECKING:
    from fl_dispatch.site import Site

IMPL_ID = "native"
#: Why it is passed over where no adapter offers one.
ABSENT = "only a layer of a framework has a method of its own; there is none here"


@dataclass(frozen=True)
class FrameworkLayer:
    """A framework's layer for one operator, to be measured as its framework calls it.

    Args:
        layer: as the framework builds it.
        method: the framework's own method, a function of the layer and the framework's arguments.
        forward: of a site, the function of the same arguments that an adapter puts in its place.
        arguments: the framework's arguments, from the operator's without ``obj``.
        fused: in graphs the framework's compiler fuses the method with what is around the layer, so that it has no time of its own.
    """

    layer: Any
    method: Callable[..., Any]
    forward: Callable[[Site], Callable[..., Any]]
    arguments: Callable[..., tuple[Any, ...]]
    fused: bool = False


def native_impl(op_name: str, fn: Callable[..., Any] | None = None) -> OpImpl:
    """The candidate for one layer.

    Args:
        op_name: the operator.
        fn: the framework's method as a function with the operator's standard signature, ``obj`` being the layer. When
            omitted the candidate can be selected (to explain a policy) but not called.

    What it writes to is the framework's matter, so a failed call of it is never retried.
    """
    return OpImpl(op_name, IMPL_ID, BackendImplKind.NATIVE, fn or _absent, traceable=True, capture_safe=True)


def standard_rotary(method: Callable[..., Any]) -> Callable[..., Any]:
    """A framework's rotary method as a function with the signature of ``rotary_embedding``.

    Args:
        method: ``(layer, positions, query, key)``, query and key [tokens, heads * head_size]; it takes cos and sin from its layer.
    """

    def rotary_embedding(
        layer: Any,
        query: Any,
        key: Any,
        cos: Any,
        sin: Any,
        position_ids: Any,
        rotary_interleaved: bool = False,
        inplace: bool = True,
    ) -> Any:
        q, k = method(layer, position_ids, query.flatten(1), key.flatten(1))
        return q.view(query.shape), k.view(key.shape)

    return rotary_embedding


def rotary_arguments(query: Any, key: Any, cos: Any, sin: Any, position_ids: Any, *flags: Any) -> tuple[Any, Any, Any]:
    """The other way round: what a framework calls its rotary method with, ``(positions, query, key)``."""
    return position_ids, query.flatten(1), key.flatten(1)


def _absent(obj: Any, *args: Any, **kwargs: Any) -> Any:
    raise SelectionError(f"token 'native': {ABSENT}")
