# SPDX-License-Identifier: Apache-2.0
"""From raw settings (strings of the environment, values of YAML files) to checked values; errors say where."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fl_dispatch import ops
from fl_dispatch.errors import ConfigError, did_you_mean
from fl_dispatch.policy import Token, token_buckets

Value = Any

_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off"}
_WORD_FOR_NOTHING = "none"


def parse_flag(value: Value, where: str) -> bool:
    """On or off, as YAML and shells write it."""
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in _TRUE | _FALSE:
        return word in _TRUE
    raise ConfigError(f"{where}: {value!r} is neither on nor off; use 1 or 0")


class ValueParser:
    """Turns raw values (strings from the environment, YAML values from files) into checked ones."""

    def __init__(self, operator_aliases: Mapping[str, tuple[str, ...]], vendors: frozenset[str]) -> None:
        self._aliases = operator_aliases
        self._installed = vendors

    def parse(self, form: str, raw: Value, lower: Value, where: str) -> Value:
        """Check one value.

        Args:
            form: the setting's form.
            raw: as found.
            lower: the value of the layers below, which lists may add to.
            where: it was found, for messages.
        """
        return getattr(self, f"_{form}")(raw, lower, where)

    def _flag(self, raw: Value, lower: Value, where: str) -> bool:
        return parse_flag(raw, where)

    def _path(self, raw: Value, lower: Value, where: str) -> str:
        if not isinstance(raw, str) or not raw:
            raise ConfigError(f"{where}: a path must be a non-empty string, not {raw!r}")
        return raw

    def _order(self, raw: Value, lower: Value, where: str) -> tuple[str, ...]:
        words = raw.replace("|", ",").split(",") if isinstance(raw, str) else raw
        if not isinstance(words, (list, tuple)):
            raise ConfigError(f"{where}: an order is a token or a list of tokens, not {raw!r}")
        if not words:
            raise ConfigError(
                f"{where}: an order needs at least one token; leave the setting out for the default order"
            )
        return tuple(self._token(word, where) for word in words)

    def _token(self, word: Value, where: str) -> str:
        if not isinstance(word, str):
            raise ConfigError(f"{where}: a token must be a string, not {word!r}")
        try:
            token = Token.parse(word)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        if token.vendor is not None:
            self._vendor_name(token.vendor, where)
        return token.text

    def _orders(self, raw: Value, lower: Value, where: str) -> dict[str, tuple[str, ...]]:
        if isinstance(raw, str):
            pairs = []
            for item in filter(None, (part.strip() for part in raw.split(";"))):
                op_name, equals, order = item.partition("=")
                if not equals or not order.strip():
                    raise ConfigError(
                        f"{where}: {item!r} is not OPERATOR=TOKEN|TOKEN, for example rms_norm=vendor|reference"
                    )
                pairs.append((op_name.strip(), order))
            raw = dict(pairs)
            if len(raw) != len(pairs):
                twice = next(op for op in raw if sum(op == other for other, _ in pairs) > 1)
                raise ConfigError(f"{where}: operator {twice!r} is given twice; join its tokens with |")
        if not isinstance(raw, Mapping):
            raise ConfigError(f"{where}: orders by operator are a mapping, not {raw!r}")
        # Operators not named here keep what a lower layer said about them.
        merged = dict(lower)
        for op_name, order in raw.items():
            if op_name not in ops.STANDARD_OPERATORS:
                raise ConfigError(
                    f"{where}: unknown operator {op_name!r}; {did_you_mean(str(op_name), ops.STANDARD_OPERATORS)}"
                )
            merged[op_name] = self._order_or_buckets(order, f"{where}[{op_name}]")
        return merged

    def _order_or_buckets(self, raw: Value, where: str) -> tuple[str, ...] | dict[int | str, tuple[str, ...]]:
        """An order, or in files one for each number of tokens up to which it holds, and for ``more``."""
        if not isinstance(raw, Mapping):
            return self._order(raw, (), where)
        orders = {bound: self._order(order, (), f"{where}[{bound}]") for bound, order in raw.items()}
        token_buckets(orders, where)
        return orders

    def _operators(self, raw: Value, lower: Value, where: str) -> frozenset[str]:
        return self._names(raw, lower, where, self._operator_name)

    def _vendors(self, raw: Value, lower: Value, where: str) -> frozenset[str]:
        return self._names(raw, lower, where, self._vendor_name)

    def _aten_operators(self, raw: Value, lower: Value, where: str) -> frozenset[str]:
        # Which ones there are only a worker can ask: FlagGems initialises the device when it is imported.
        return self._names(raw, lower, where, lambda name, _: (name,))

    def _operator_name(self, name: str, where: str) -> Iterable[str]:
        if name not in self._aliases:
            raise ConfigError(f"{where}: unknown operator {name!r}; {did_you_mean(name, self._aliases)}")
        return self._aliases[name]

    def _vendor_name(self, name: str, where: str) -> Iterable[str]:
        if name not in self._installed:
            raise ConfigError(
                f"{where}: no installed vendor is named {name!r}; {did_you_mean(name, self._installed)} "
                "(`fl-dispatch doctor` lists installed vendors)"
            )
        return (name,)

    def _names(
        self, raw: Value, lower: Value, where: str, resolve: Callable[[str, str], Iterable[str]]
    ) -> frozenset[str]:
        base: Iterable[str] = ()
        if isinstance(raw, Mapping):
            if set(raw) != {"append"}:
                raise ConfigError(
                    f"{where}: a list is replaced by a list, or added to with {{append: [...]}}; got {raw!r}"
                )
            base, raw = self._extended(lower, where), raw["append"]
        elif isinstance(raw, str) and raw.startswith("+"):
            base, raw = self._extended(lower, where), raw[1:]
        if isinstance(raw, str):
            raw = [word.strip() for word in raw.split(",") if word.strip()]
            if raw == [_WORD_FOR_NOTHING]:
                raw = []
        if not isinstance(raw, (list, tuple, set, frozenset)) or not all(isinstance(word, str) for word in raw):
            raise ConfigError(f"{where}: expected a list of names, not {raw!r}")
        return frozenset(base) | {target for word in raw for target in resolve(word, where)}

    @staticmethod
    def _extended(lower: Value, where: str) -> Iterable[str]:
        if lower is None:
            # Unset means "all" for these lists: adding to all would silently do nothing, and replacing it was not asked
            # for.
            raise ConfigError(f"{where}: there is no list below it to add to; give the whole list, without + or append")
        names: Iterable[str] = lower
        return names
