# SPDX-License-Identifier: Apache-2.0
"""What this process can find out about itself: device, architecture, availability. Only used where operators run."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from fl_dispatch.selection import DeviceFacts
from fl_dispatch.types import OpImpl


@functools.cache
def default_device_type() -> str:
    """The accelerator torch was built for and can see, else ``cpu``. Creates no device context."""
    import torch

    if not hasattr(torch, "accelerator"):  # torch before 2.6
        return "cuda" if torch.cuda.is_available() else "cpu"
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


def device_name(device_type: str) -> str:
    """What the device calls itself, for example ``"NVIDIA H200"``; of a CPU its model, or what the platform knows.

    Raises:
        RuntimeError, AssertionError: torch knows no such device, or there is none.
    """
    import torch

    if device_type == "cpu":
        return _processor()
    name = getattr(torch.get_device_module(device_type), "get_device_name", None)
    return device_type if name is None else str(name())


def _processor() -> str:
    """Linux tells the model, and to other functions of Python's no more than the architecture."""
    import platform

    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        named = []
    return next(filter(None, named), platform.processor() or platform.machine())


def facts_for(device_type: str | None, dtype: str | None = None, captured: bool = False) -> DeviceFacts:
    """All that is known about one device type; this process's own when None."""
    kind = device_type or default_device_type()
    return DeviceFacts(kind, architecture(kind), dtype, captured)


class Availability:
    """What the availability probes said. Each is asked once, where operators run."""

    def __init__(self) -> None:
        # By identity, as a probe need not be hashable; bound methods are made anew at each access, so they are kept.
        self._answers: list[tuple[Callable[[], Any], str | None]] = []

    def reason_against(self, impl: OpImpl) -> str | None:
        """None when the implementation can be used in this process, else why not."""
        probe = impl.available
        if probe is None:
            return None
        for known, answer in self._answers:
            if known is probe or _same_method(known, probe):
                return answer
        answer = unavailable_reason(probe)
        self._answers.append((probe, answer))
        return answer

    def forget(self) -> None:
        """Ask again."""
        self._answers.clear()


def _same_method(one: Any, other: Any) -> bool:
    """Bound methods of one object: the same probe, though each access makes a new one."""
    owner = getattr(one, "__self__", None)
    return owner is not None and owner is getattr(other, "__self__", None) and one.__func__ is other.__func__


def unavailable_reason(probe: Callable[[], Any]) -> str | None:
    """Ask one probe; None when it says yes, else its reason. One that raises is a reason, not a crash."""
    owner = getattr(probe, "__self__", None)
    try:
        answer = probe()
        if isinstance(answer, str) and answer:
            return answer
        if inspect.isawaitable(answer):
            getattr(answer, "close", lambda: None)()
            return "its availability probe is an async function, which nobody awaits"
        if answer:  # also NumPy's True, or a device count
            return None
        explain = getattr(owner, "unavailable_reason", None)
        reason = explain() if callable(explain) else None
    except (Exception, SystemExit) as error:  # noqa: BLE001  (a vendor's probe may raise anything: a reason)
        return f"its availability probe raised {type(error).__name__}: {error}"
    return str(reason) if reason else f"not available: {getattr(probe, '__name__', 'its probe')}() returned {answer!r}"


def tracing_or_capturing() -> bool:
    """Whether a compile trace or a device-graph capture is under way, when nothing may be retried."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if torch.compiler.is_compiling():
        return True
    # Of this machine's accelerator; torch's modules for other devices have the same functions as torch.cuda.
    module = getattr(torch, default_device_type(), None)
    initialized = getattr(module, "is_initialized", None)
    capturing = getattr(module, "is_current_stream_capturing", None)
    return bool(capturing is not None and (initialized is None or initialized()) and capturing())


def is_tracing() -> bool:
    """Whether ``torch.compile`` is tracing the code that asks; Dynamo folds this into a constant."""
    import torch

    return torch.compiler.is_compiling()
