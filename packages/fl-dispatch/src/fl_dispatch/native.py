# SPDX-License-Identifier: Apache-2.0
"""The token ``native``: the framework's own method as a candidate.

An adapter offers it for each layer. Where it is chosen the layer is not bound at all: it runs the framework's function,
untouched and at no cost. Elsewhere (``call_op``, ``resolve_op``) there is no such method, and it is passed over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fl_dispatch.errors import SelectionError
from fl_dispatch.types import BackendImplKind, OpImpl

IMPL_ID = "native"
#: Why it is passed over where no adapter offers one.
ABSENT = "only a layer of a framework has a method of its own; there is none here"


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


def _absent(obj: Any, *args: Any, **kwargs: Any) -> Any:
    raise SelectionError(f"token 'native': {ABSENT}")
