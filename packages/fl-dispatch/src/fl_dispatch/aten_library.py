# SPDX-License-Identifier: Apache-2.0
"""FlagGems' kernels in PyTorch's dispatcher: what FlagGems offers, and the registration of what was chosen."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import torch

from fl_dispatch.aten import Offer
from fl_dispatch.aten_record import AtenRecord
from fl_dispatch.backends.flagos import register_all

#: Kept for the process's life: PyTorch takes the kernels out again when their library goes.
_kept: list[Any] = []


class _Offers(torch.library.Library):
    """A library that notes what is registered with it, and registers nothing."""

    def __init__(self) -> None:
        super().__init__("aten", "IMPL")  # type: ignore[no-untyped-call]  # as torch has it
        self.offers: list[Offer] = []

    def impl(self, op_name: Any, fn: Any, dispatch_key: str = "", **options: Any) -> None:
        """As ``torch.library.Library.impl``."""
        name = op_name if isinstance(op_name, str) else op_name._schema.name
        self.offers.append(Offer(str(name).removeprefix("aten::"), fn, dispatch_key, options))


def ask_flag_gems() -> tuple[Offer, ...]:
    """What ``flag_gems.enable`` registers on this device, its own exclusions for the chip taken into account."""
    library = _Offers()
    register_all(library)
    return tuple(library.offers)


def register(offers: Iterable[Offer], record: AtenRecord | None) -> tuple[dict[str, str], dict[str, str]]:
    """Put kernels in place of PyTorch's; what serves a call is noted in ``record`` if there is one.

    Returns:
        operator to FlagGems' function for what is replaced, and operator to error for what PyTorch refused.
    """
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]  # as torch has it
    replaced: dict[str, str] = {}
    refused: dict[str, str] = {}
    for offer in offers:
        if not _exists(offer.key):
            refused[offer.key] = "this PyTorch has no such operator"
            continue
        function = f"{getattr(offer.fn, '__module__', 'flag_gems')}.{offer.function}"
        fn = offer.fn if record is None else _noting(offer.key, function, offer.fn, record)
        try:
            library.impl(offer.key, fn, offer.dispatch_key, **offer.options)  # type: ignore[no-untyped-call]
        except Exception as error:  # noqa: BLE001  (one of hundreds: kept and shown, the others are registered)
            refused[offer.key] = f"{type(error).__name__}: {error}".splitlines()[0]
        else:
            replaced[offer.key] = function
    _kept.append(library)
    return replaced, refused


def _exists(key: str) -> bool:
    """Whether PyTorch has the operator; it would take a kernel for one that nobody can call."""
    name, _, overload = key.partition(".")
    packet = getattr(torch.ops.aten, name, None)
    return packet is not None and (overload or "default") in packet.overloads()


def _noting(key: str, function: str, fn: Callable[..., Any], record: AtenRecord) -> Callable[..., Any]:
    """Note the first call that does not come from FlagGems itself; later ones cost one more look at a set."""
    seen = record.seen

    @functools.wraps(fn)
    def noting(*args: Any, **kwargs: Any) -> Any:
        if key not in seen and not _inside_flag_gems(sys._getframe(1)):
            record.note(key, function)
        return fn(*args, **kwargs)

    return noting


def _inside_flag_gems(frame: FrameType | None) -> bool:
    """Whether FlagGems' own code made the call: then it is no operator of the model, but a step of another one."""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name == "flag_gems" or name.startswith("flag_gems."):
            return True
        frame = frame.f_back
    return False
