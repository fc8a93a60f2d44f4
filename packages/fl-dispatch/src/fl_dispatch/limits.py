# SPDX-License-Identifier: Apache-2.0
"""One call, or one layer, against what an implementation declares. A verdict is None for yes, else why not, in words.

The checkers are also traced by ``torch.compile``, so they are plain functions over plain values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fl_dispatch.ops.spec import OpSpec
from fl_dispatch.types import OpImpl

if TYPE_CHECKING:
    from fl_dispatch.site import Site

#: ``verdict(args, kwargs)``: None when the call is inside the limits, else the limit it breaks.
Checker = Callable[[Sequence[Any], Mapping[str, Any]], "str | None"]


def dtype_name(dtype: Any) -> str | None:
    """``torch.float16`` to ``"float16"``."""
    return None if dtype is None else str(dtype).removeprefix("torch.")


def dtype_of(args: Sequence[Any]) -> str | None:
    """The dtype a call counts under: that of the first tensor after ``obj``."""
    return dtype_name(getattr(args[1], "dtype", None)) if len(args) > 1 else None


def positional(
    parameters: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Move standard arguments that were passed by name to their places, as far as there is no gap."""
    placed, named = list(args), dict(kwargs)
    for name in parameters[len(placed) :]:
        if name not in named:
            break
        placed.append(named.pop(name))
    return tuple(placed), named


def predicate_verdict(
    predicate: Callable[..., bool | str], args: Sequence[Any], kwargs: Mapping[str, Any], name: str
) -> str | None:
    """Ask a vendor's predicate. One that raises is a refusal with that reason: nothing was launched yet."""
    try:
        answer = predicate(*args, **kwargs)
    except Exception as error:  # noqa: BLE001  (a probe of the call; the exception is kept as the reason)
        return f"its {name}() predicate raised {type(error).__name__}: {error}"
    if isinstance(answer, str) and answer:
        return answer
    return None if answer else f"its {name}() predicate says no"


#: Attribute of a layer: the names of fields that tell how its framework rounds. Whoever rounds otherwise may serve it too.
WISHES = "fl_wishes"


def layer_verdict(impl: OpImpl, obj: Any, defaults: Mapping[str, Any]) -> str | None:
    """Whether an implementation honours a layer's configuration.

    Args:
        impl: the implementation.
        obj: the layer.
        defaults: of the operator's optional fields (``OpSpec.field_defaults``).
    """
    wishes = getattr(obj, WISHES, ())
    for name, text in _not_honoured(impl, obj, defaults):
        if name not in wishes:
            return text
    if impl.supports_layer is not None:
        return predicate_verdict(impl.supports_layer, (obj,), {}, "supports_layer")
    return None


def layer_remark(impl: OpImpl, obj: Any, defaults: Mapping[str, Any]) -> str | None:
    """The wishes of a layer that an implementation does not fulfil; it may run all the same."""
    wishes = getattr(obj, WISHES, ())
    return "; ".join(text for name, text in _not_honoured(impl, obj, defaults) if name in wishes) or None


def _not_honoured(impl: OpImpl, obj: Any, defaults: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, values in impl.honours.items():
        value = getattr(obj, name, defaults.get(name))
        if value not in values:
            wanted = ", ".join(sorted(map(repr, values)))
            yield name, f"honours {name} only as {wanted}, this layer has {value!r}"


def checker(
    impl: OpImpl,
    spec: OpSpec,
    demoted: frozenset[str] = frozenset(),
    *,
    layer_settled: bool = False,
    dtype_settled: bool = False,
    device_settled: bool = False,
) -> Checker | None:
    """The check that a single call needs, or None when the decision has settled everything.

    Args:
        impl: the implementation.
        spec: its operator.
        demoted: dtypes it was demoted for.
        layer_settled: ``honours`` and ``supports_layer`` were asked when the layer was bound.
        dtype_settled: the layer's dtype was known then.
        device_settled: the layer's device was known then.
    """
    per_layer = not layer_settled and bool(impl.honours or impl.supports_layer)
    allowed = None if dtype_settled or impl.dtypes is None else torch_dtypes(impl.dtypes)
    excluded = frozenset() if dtype_settled else torch_dtypes(demoted)
    devices = None if device_settled else impl.devices
    supports = impl.supports
    if not (per_layer or excluded or supports) and allowed is None and devices is None:
        return None
    defaults = spec.field_defaults

    def verdict(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        if len(args) > 1:
            x = args[1]
            if allowed is not None and x.dtype not in allowed:
                return f"takes {_listed(impl.dtypes)}, not {dtype_name(x.dtype)}"
            if excluded and x.dtype in excluded:
                return f"demoted for {dtype_name(x.dtype)} after repeated failures"
            if devices is not None and x.device.type not in devices:
                return f"needs device {_listed(devices, ' or ')}, the input is on {x.device.type}"
        if per_layer:
            reason = layer_verdict(impl, args[0], defaults)
            if reason is not None:
                return reason
        return None if supports is None else predicate_verdict(supports, args, kwargs, "supports")

    return verdict


def check_for(site: Site, impl: OpImpl) -> Checker | None:
    """The check a single call of ``impl`` at this site needs; None: nothing."""
    return checker(
        impl,
        site.manager.registry.spec(site.op_name),
        site.manager.failures.demoted_dtypes(impl),
        layer_settled=site.obj is not None,
        dtype_settled=site.dtype is not None,
        device_settled=site.device_type is not None,
    )


def torch_dtypes(names: frozenset[str]) -> frozenset[Any]:
    """The torch dtypes of these names, which the registry has checked."""
    import torch

    return frozenset(getattr(torch, name) for name in names)


def _listed(names: frozenset[str] | None, separator: str = ", ") -> str:
    return separator.join(sorted(names or ()))


def describe_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Shapes, dtypes and devices of one call, for messages."""

    def one(value: Any) -> str:
        shape = getattr(value, "shape", None)
        if shape is None or not hasattr(value, "dtype"):
            return repr(value) if isinstance(value, (int, float, bool, str, type(None))) else type(value).__name__
        return f"{dtype_name(value.dtype)}{list(shape)}@{value.device}"

    parts = [one(value) for value in args]
    parts += [f"{key}={one(value)}" for key, value in kwargs.items()]
    return ", ".join(parts)
