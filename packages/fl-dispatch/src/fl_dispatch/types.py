# SPDX-License-Identifier: Apache-2.0
"""Values that describe one implementation of one operator. Frozen, torch-free, safe to import anywhere."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


class BackendImplKind(str, enum.Enum):
    """Where an implementation comes from. The value is the policy token of the whole group.

    ``NATIVE`` is the framework's own method: adapters offer it for a layer, nobody registers it.
    """

    DEFAULT = "flagos"
    VENDOR = "vendor"
    REFERENCE = "reference"
    NATIVE = "native"


class BackendPriority(enum.IntEnum):
    """Priorities of the three groups; a higher number is tried first under the default policy."""

    DEFAULT = 150
    VENDOR = 100
    REFERENCE = 50


_DEFAULT_PRIORITY = {
    BackendImplKind.DEFAULT: BackendPriority.DEFAULT,
    BackendImplKind.VENDOR: BackendPriority.VENDOR,
    BackendImplKind.REFERENCE: BackendPriority.REFERENCE,
    BackendImplKind.NATIVE: 0,
}


@dataclass(frozen=True)
class OpImpl:
    """One implementation of one standard operator, and what it declares about itself.

    The first six fields are all a vendor has to give. Everything else is a declaration; what is not declared is
    assumed at its most careful: any dtype, mutation unknown (so a failed call is never retried), not traceable.

    Args:
        op_name: name of a standard operator, for example ``"rms_norm"``.
        impl_id: unique per operator, for example ``"vendor.my_chip"``; the policy token ``impl:ID`` selects it.
        kind: ``BackendImplKind.DEFAULT`` (FlagGems), ``VENDOR`` or ``REFERENCE``.
        fn: the callable, with the operator's standard signature.
        vendor: the vendor's name, required for ``kind=VENDOR``.
        priority: order inside a group, highest first; the group's default when omitted.
        available: asked once, where operators run: True, or False, or a reason why it cannot be used in this process.
            When omitted, ``fn._is_available`` if there is one.
        dtypes: the input dtypes it takes, by name (``{"float16", "bfloat16"}``) or as torch dtypes; None: any.
        devices: device types it takes (``{"cuda"}``); None: any.
        min_arch: lowest device capability, ``(major, minor)``; None: any.
        supports: predicate over one call's arguments, the same as ``fn``'s; True, or a reason why not.
        supports_layer: predicate over ``obj`` alone, evaluated once when a layer is bound; True, or a reason.
        honours: for optional fields of ``obj``, the values it honours, for example
            ``{"cast_x_before_out_mul": {False}}``; a field that is not named is taken to be honoured.
        mutates: names of the arguments it may write to; ``frozenset()`` says none; None: unknown.
        reads: fields of ``obj`` it reads; None: unknown.
        traceable: ``torch.compile`` may trace into ``fn``.
        capture_safe: may run inside a device-graph capture and be replayed.
        registered_by: filled in by the registry: the distribution it came from.
    """

    op_name: str
    impl_id: str
    kind: BackendImplKind
    fn: Callable[..., Any]
    vendor: str | None = None
    priority: int | None = None
    available: Callable[[], bool | str] | None = None
    dtypes: frozenset[str] | None = None
    devices: frozenset[str] | None = None
    min_arch: tuple[int, int] | None = None
    supports: Callable[..., bool | str] | None = None
    supports_layer: Callable[[Any], bool | str] | None = None
    # Not part of the hash: a mapping has none.
    honours: Mapping[str, frozenset[Any]] = field(default_factory=dict, hash=False)
    mutates: frozenset[str] | None = None
    reads: frozenset[str] | None = None
    traceable: bool = False
    capture_safe: bool = False
    registered_by: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.kind, BackendImplKind):
            raise TypeError(f"{self}: kind must be a BackendImplKind, not {self.kind!r}")
        if not callable(self.fn):
            raise TypeError(f"{self}: fn must be callable, not {self.fn!r}")
        if inspect.iscoroutinefunction(self.fn):
            raise TypeError(f"{self}: fn is an async function; an operator returns its result")
        for name in ("op_name", "impl_id"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise TypeError(f"{self}: {name} must be a non-empty string, not {getattr(self, name)!r}")
        if self.kind is BackendImplKind.VENDOR and not self.vendor:
            raise TypeError(f"{self}: kind=VENDOR needs vendor=NAME")
        # What a vendor wrote need not be what the annotations say.
        vendor: object = self.vendor
        priority: object = self.priority
        honours: object = self.honours
        if vendor is not None and (not isinstance(vendor, str) or set(vendor) & set(", |;=+")):
            # It has to be possible to name it in a list of vendors and in an order of tokens.
            raise TypeError(f"{self}: vendor must be a name without blanks, commas or |;=+, not {self.vendor!r}")
        if priority is not None and (not isinstance(priority, int) or isinstance(priority, bool)):
            raise TypeError(f"{self}: priority must be an int, not {self.priority!r}")
        for name in ("available", "supports", "supports_layer"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise TypeError(f"{self}: {name} must be callable, not {getattr(self, name)!r}")
        if self.priority is None:
            object.__setattr__(self, "priority", int(_DEFAULT_PRIORITY[self.kind]))
        if self.available is None:
            object.__setattr__(self, "available", getattr(self.fn, "_is_available", None))
        for name in ("dtypes", "devices", "mutates", "reads"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise TypeError(f"{self}: {name} must be a collection of names, not the string {value!r}")
            if value is not None and not isinstance(value, Iterable):
                raise TypeError(f"{self}: {name} must be a collection of names, not {value!r}")
            if value is not None:
                words = (str(word).removeprefix("torch.") for word in value) if name == "dtypes" else value
                object.__setattr__(self, name, frozenset(words))
        if self.min_arch is not None and not _is_arch(self.min_arch):
            raise TypeError(f"{self}: min_arch must be (major, minor), not {self.min_arch!r}")
        if not isinstance(honours, Mapping) or any(
            isinstance(values, str) or not isinstance(values, Iterable) for values in honours.values()
        ):
            raise TypeError(f"{self}: honours must map fields to collections of values, not {self.honours!r}")
        object.__setattr__(self, "honours", {key: frozenset(values) for key, values in self.honours.items()})

    def __str__(self) -> str:
        return f"OpImpl({self.op_name}, {self.impl_id})"


def _is_arch(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(part, int) for part in value)
