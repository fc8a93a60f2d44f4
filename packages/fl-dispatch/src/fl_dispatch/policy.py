# SPDX-License-Identifier: Apache-2.0
"""``SelectionPolicy``: what the user wants, as a frozen value. No I/O, no globals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from fl_dispatch.errors import ConfigError, did_you_mean
from fl_dispatch.types import BackendImplKind, OpImpl

#: Order in force when the user says nothing.
DEFAULT_ORDER = ("flagos", "vendor", "reference")
_GROUPS = tuple(kind.value for kind in BackendImplKind)


@dataclass(frozen=True)
class Token:
    """One entry of an order: ``flagos``, ``vendor``, ``vendor:NAME``, ``reference``, ``native`` or ``impl:ID``."""

    text: str
    kind: BackendImplKind | None = None
    vendor: str | None = None
    impl_id: str | None = None

    @classmethod
    def parse(cls, text: str) -> Token:
        """Parse one token; raises ConfigError that names the token and the valid forms."""
        word = text.strip()
        if word in _GROUPS:
            return cls(word, kind=BackendImplKind(word))
        head, colon, tail = word.partition(":")
        if colon and tail and head == "vendor":
            return cls(word, kind=BackendImplKind.VENDOR, vendor=tail)
        if colon and tail and head == "impl":
            return cls(word, impl_id=tail)
        hint = did_you_mean(head if colon else word, (*_GROUPS, "impl"))
        raise ConfigError(
            f"unknown selection token {text!r}; "
            f"valid tokens are flagos, vendor, vendor:NAME, reference, native and impl:ID; {hint}"
        )

    def matches(self, impl: OpImpl) -> bool:
        """Whether the token stands for this implementation."""
        if self.impl_id is not None:
            return impl.impl_id == self.impl_id
        return impl.kind is self.kind and (self.vendor is None or impl.vendor == self.vendor)


def _tokens(value: str | Iterable[str], where: str) -> tuple[str, ...]:
    words = (value,) if isinstance(value, str) else tuple(value)
    if not words:
        raise ConfigError(f"{where}: an order needs at least one token")
    for word in words:
        if not isinstance(word, str):
            raise ConfigError(f"{where}: a token must be a string, not {word!r}")
    return tuple(Token.parse(word).text for word in words)


@dataclass(frozen=True)
class SelectionPolicy:
    """Which implementations to prefer, and which never to use.

    Args:
        prefer: a token or an order of tokens, tried first for every operator.
        per_op: operator name to an order of tokens, tried before ``prefer`` for that operator.
        deny_vendors: vendors never to use; they are not even imported.
        allow_vendors: when given, the only vendors to use; the others are not imported.
        strict: the first token of the order must give an implementation that is able; nothing falls back, at
            selection, at a predicate or after a failure.

    Tokens that are not listed follow in the default order flagos, vendor, reference. The framework's own method,
    ``native``, is a candidate only where it is listed.

    Raises:
        ConfigError: an unknown token, an empty order, or a vendor both allowed and denied.
    """

    prefer: tuple[str, ...] = DEFAULT_ORDER
    per_op: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    deny_vendors: frozenset[str] = frozenset()
    allow_vendors: frozenset[str] | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "prefer", _tokens(self.prefer, "prefer"))
        per_op = {op: _tokens(order, f"per_op[{op!r}]") for op, order in sorted(self.per_op.items())}
        set_(self, "per_op", MappingProxyType(per_op))
        for name in ("deny_vendors", "allow_vendors"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise ConfigError(f"{name} must be a collection of vendor names, not the string {value!r}")
            if value is not None:
                set_(self, name, frozenset(value))
        both = self.deny_vendors & (self.allow_vendors or frozenset())
        if both:
            raise ConfigError(f"vendors both allowed and denied: {', '.join(sorted(both))}; name each in one list only")

    def __hash__(self) -> int:
        return hash((self.prefer, tuple(self.per_op.items()), self.deny_vendors, self.allow_vendors, self.strict))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SelectionPolicy):
            return NotImplemented
        return self.as_dict() == other.as_dict()

    def __reduce__(self) -> tuple[object, ...]:
        # A mappingproxy does not pickle; policies travel to spawned workers.
        per_op = dict(self.per_op)
        return (SelectionPolicy, (self.prefer, per_op, self.deny_vendors, self.allow_vendors, self.strict))

    def order(self, op_name: str) -> tuple[Token, ...]:
        """The tokens for one operator, most wanted first, each once."""
        words = (*self.per_op.get(op_name, ()), *self.prefer, *DEFAULT_ORDER)
        return tuple(Token.parse(word) for word in dict.fromkeys(words))

    def vendor_verdict(self, vendor: str) -> str | None:
        """None when the vendor may be used, else the reason why not."""
        if vendor in self.deny_vendors:
            return f"vendor {vendor!r} is denied (deny_vendors)"
        if self.allow_vendors is not None and vendor not in self.allow_vendors:
            return f"vendor {vendor!r} is not in allow_vendors"
        return None

    def as_dict(self) -> dict[str, object]:
        """A plain form for reports and fingerprints."""
        return {
            "prefer": list(self.prefer),
            "per_op": {op: list(order) for op, order in self.per_op.items()},
            "deny_vendors": sorted(self.deny_vendors),
            "allow_vendors": None if self.allow_vendors is None else sorted(self.allow_vendors),
            "strict": self.strict,
        }
