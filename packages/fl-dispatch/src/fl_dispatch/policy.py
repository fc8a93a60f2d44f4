# SPDX-License-Identifier: Apache-2.0
"""``SelectionPolicy``: what the user wants, as a frozen value. No I/O, no globals."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

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


#: One order for up to so many tokens; None: for more than the last bound.
Bucket = tuple[int | None, tuple[str, ...]]


def token_buckets(value: object, where: str) -> tuple[Bucket, ...]:
    """``{16: "vendor", "more": "native"}``, or pairs as stored, in order and with an entry for what is above all bounds."""
    pairs = value.items() if isinstance(value, Mapping) else value
    if not isinstance(pairs, Iterable) or isinstance(pairs, str):
        raise ConfigError(f"{where}: orders by number of tokens are a mapping such as {{16: vendor, more: flagos}}")
    bounded: dict[int, tuple[str, ...]] = {}
    rest: tuple[str, ...] = ()
    for bound, order in pairs:
        if bound in ("more", None):
            rest = _tokens(order, f"{where}[more]") if order else ()
        elif isinstance(bound, bool) or not isinstance(bound, int) or bound < 1:
            raise ConfigError(f"{where}: {bound!r} is no number of tokens; use a whole number from 1, or more")
        else:
            bounded[bound] = _tokens(order, f"{where}[{bound}]")
    if not bounded:
        raise ConfigError(f"{where}: needs at least one number of tokens, for example {{16: vendor, more: flagos}}")
    return (*sorted(bounded.items()), (None, rest))


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
        by_tokens: operator name to orders by the number of tokens of a call (the first dimension of its input), for
            example ``{"rms_norm": {16: "flagos", "more": "vendor"}}``: up to 16 tokens, and more. What they do not
            name follows as in ``per_op`` and ``prefer``.

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
    by_tokens: Mapping[str, tuple[Bucket, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "prefer", _tokens(self.prefer, "prefer"))
        per_op = {op: _tokens(order, f"per_op[{op!r}]") for op, order in sorted(self.per_op.items())}
        set_(self, "per_op", MappingProxyType(per_op))
        by_tokens = {op: token_buckets(value, f"by_tokens[{op!r}]") for op, value in sorted(self.by_tokens.items())}
        set_(self, "by_tokens", MappingProxyType(by_tokens))
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
        orders = (self.prefer, tuple(self.per_op.items()), tuple(self.by_tokens.items()))
        return hash((*orders, self.deny_vendors, self.allow_vendors, self.strict))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SelectionPolicy):
            return NotImplemented
        return self.as_dict() == other.as_dict()

    def __reduce__(self) -> tuple[object, ...]:
        # A mappingproxy does not pickle; policies travel to spawned workers.
        lists = (self.deny_vendors, self.allow_vendors)
        return (SelectionPolicy, (self.prefer, dict(self.per_op), *lists, self.strict, dict(self.by_tokens)))

    def buckets(self, op_name: str) -> tuple[tuple[int | None, SelectionPolicy], ...]:
        """For an operator that is chosen by the number of tokens: each upper bound (None: more than the last) with the
        policy that holds for it, which knows no numbers of tokens any more. Otherwise nothing."""
        rest = {op: buckets for op, buckets in self.by_tokens.items() if op != op_name}
        found = []
        for bound, order in self.by_tokens.get(op_name, ()):
            words = (*order, *self.per_op.get(op_name, ()))
            per_op = {**self.per_op, **({op_name: words} if words else {})}
            found.append((bound, dataclasses.replace(self, per_op=per_op, by_tokens=rest)))
        return tuple(found)

    def for_tokens(self, op_name: str, tokens: int | None) -> SelectionPolicy:
        """The policy for calls of an operator with so many tokens (None: more than the last bound); often itself."""
        for bound, policy in self.buckets(op_name):
            if bound is None or (tokens is not None and tokens <= bound):
                return policy
        return self

    def order(self, op_name: str) -> tuple[Token, ...]:
        """The tokens for one operator, most wanted first, each once; regardless of numbers of tokens."""
        words = (*self.per_op.get(op_name, ()), *self.prefer, *DEFAULT_ORDER)
        return tuple(Token.parse(word) for word in dict.fromkeys(words))

    def vendor_verdict(self, vendor: str) -> str | None:
        """None when the vendor may be used, else the reason why not."""
        if vendor in self.deny_vendors:
            return f"vendor {vendor!r} is denied (deny_vendors)"
        if self.allow_vendors is not None and vendor not in self.allow_vendors:
            return f"vendor {vendor!r} is not in allow_vendors"
        return None

    def as_dict(self) -> dict[str, Any]:
        """A plain form for reports and fingerprints."""
        return {
            "prefer": list(self.prefer),
            "per_op": {op: list(order) for op, order in self.per_op.items()},
            "deny_vendors": sorted(self.deny_vendors),
            "allow_vendors": None if self.allow_vendors is None else sorted(self.allow_vendors),
            "strict": self.strict,
            "by_tokens": {
                op: {"more" if bound is None else str(bound): list(order) for bound, order in buckets}
                for op, buckets in self.by_tokens.items()
            },
        }
