# SPDX-License-Identifier: Apache-2.0
"""What this process can find out about itself: device, architecture, and one call's arguments. Only used where operators run."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fl_dispatch.selection import DeviceFacts
from fl_dispatch.types import OpImpl


def dtype_name(dtype: Any) -> str | None:
    """``torch.float16`` to ``"float16"``."""
    return None if dtype is None else str(dtype).removeprefix("torch.")


@functools.cache
def default_device_type() -> str:
    """The accelerator torch was built for and can see, else ``cpu``. Creates no device context."""
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator.type if accelerator is not None else "cpu"


@functools.cache
def architecture(device_type: str) -> tuple[int, int] | None:
    """The device capability as (major, minor), where the device type has one."""
    if device_type != "cuda":
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return (major, minor)


def facts_for(device_type: str | None, dtype: str | None = None) -> DeviceFacts:
    kind = device_type or default_device_type()
    return DeviceFacts(kind, architecture(kind), dtype)


def unavailable_reason(probe: Callable[[], Any]) -> str | None:
    """Ask one availability probe; None when it says yes, else its reason. A probe that raises is a reason, not a crash."""
    owner = getattr(probe, "__self__", None)
    try:
        answer = probe()
        if answer is True:
            return None
        if isinstance(answer, str) and answer:
            return answer
        explain = getattr(owner, "unavailable_reason", None)
        reason = explain() if callable(explain) else None
    except Exception as error:  # noqa: BLE001  (a vendor's probe may raise anything; the exception becomes the reason)
        return f"its availability probe raised {type(error).__name__}: {error}"
    return reason or "not available: is_available() returned False"


def layer_verdict(impl: OpImpl, obj: Any) -> str | None:
    """None when the implementation honours the layer's configuration, else why not."""
    for name, values in impl.honours.items():
        value = getattr(obj, name, False)
        if value not in values:
            wanted = ", ".join(sorted(map(repr, values)))
            return f"honours {name} only as {wanted}, this layer has {value!r}"
    if impl.supports_layer is not None:
        return predicate_verdict(impl.supports_layer, (obj,), {}, "supports_layer")
    return None


def call_verdict(impl: OpImpl, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """None when one call is inside what the implementation declares, else the limit it breaks."""
    x = args[1] if len(args) > 1 else None
    if x is not None:
        if impl.dtypes is not None and dtype_name(x.dtype) not in impl.dtypes:
            return f"takes {', '.join(sorted(impl.dtypes))}, not {dtype_name(x.dtype)}"
        if impl.devices is not None and x.device.type not in impl.devices:
            return f"needs device {' or '.join(sorted(impl.devices))}, the input is on {x.device.type}"
    if impl.supports is not None:
        return predicate_verdict(impl.supports, args, kwargs, "supports")
    return None


def predicate_verdict(
    predicate: Callable[..., bool | str], args: Sequence[Any], kwargs: Mapping[str, Any], name: str
) -> str | None:
    answer = predicate(*args, **kwargs)
    if answer is True:
        return None
    return answer if isinstance(answer, str) and answer else f"its {name}() predicate says no"


def tracing_or_capturing() -> bool:
    """Whether a compile trace or a device-graph capture is under way, when nothing may be retried."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if torch.compiler.is_compiling():
        return True
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return bool(torch.cuda.is_current_stream_capturing())
    return False


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
