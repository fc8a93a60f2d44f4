# SPDX-License-Identifier: Apache-2.0
"""The only reader of environment variables and configuration files.

One table of settings, one parser, one precedence: environment > file > platform default > built-in. The prefix is a parameter,
so that SGLang (``SGLANG_FL_``), vLLM (``VLLM_FL_``) and plain use (``FL_DISPATCH_``) read alike.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from fl_dispatch import ops
from fl_dispatch.errors import ConfigError, did_you_mean
from fl_dispatch.policy import SelectionPolicy, Token

Value = Any


@dataclass(frozen=True)
class Setting:
    """One setting: its key in files, its form, what it means. The variable is the prefix and the key in capitals."""

    key: str
    form: str
    meaning: str
    default: Value = None
    in_file: bool = True


#: Every setting there is. The configuration reference in docs/ is tested against this table.
SETTINGS: tuple[Setting, ...] = (
    Setting("prefer", "order", "Tokens tried first for every operator, most wanted first.", ("flagos", "vendor", "reference")),
    Setting("per_op", "orders", "For single operators: tokens tried before `prefer`.", MappingProxyType({})),
    Setting("strict", "flag", "The first token must be able, and nothing ever falls back.", False),
    Setting("deny_vendors", "vendors", "Vendors never used and never imported.", ()),
    Setting("allow_vendors", "vendors", "If set, the only vendors used; the others are not imported.", None),
    Setting("oot_whitelist", "operators", "If set, the only operators taken over from the framework.", None),
    Setting("oot_blacklist", "operators", "Operators left to the framework's own method.", ()),
    Setting("report", "path", "Where each worker writes its JSON report; the rank is put into the name.", None),
    Setting("config", "path", "A YAML file with the settings above, by key.", None, in_file=False),
)
_BY_KEY = {setting.key: setting for setting in SETTINGS}

#: Read without a prefix, as in FlagGems itself.
USE_FLAGGEMS = "USE_FLAGGEMS"

_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off"}
_WORD_FOR_NOTHING = "none"


@dataclass(frozen=True)
class Config:
    """The settings in force, with where each came from (``built-in``, ``platform default``, a file, a variable)."""

    prefix: str
    policy: SelectionPolicy
    oot_whitelist: frozenset[str] | None = None
    oot_blacklist: frozenset[str] = frozenset()
    report: str | None = None
    use_flaggems: bool = True
    origins: Mapping[str, str] = field(default_factory=dict)

    def takes_over(self, op_name: str) -> str | None:
        """None when the operator is taken over from the framework, else which list leaves it out."""
        if op_name in self.oot_blacklist:
            return f"in the black list ({self.origins.get('oot_blacklist', 'oot_blacklist')})"
        if self.oot_whitelist is not None and op_name not in self.oot_whitelist:
            return f"not in the white list ({self.origins.get('oot_whitelist', 'oot_whitelist')})"
        return None

    def as_dict(self) -> dict[str, object]:
        values: dict[str, object] = dict(self.policy.as_dict())
        values["oot_whitelist"] = None if self.oot_whitelist is None else sorted(self.oot_whitelist)
        values["oot_blacklist"] = sorted(self.oot_blacklist)
        values["report"] = self.report
        values["use_flaggems"] = self.use_flaggems
        return {key: {"value": value, "from": self.origins.get(key, "built-in")} for key, value in values.items()}


def load_config(
    prefix: str,
    environ: Mapping[str, str] | None = None,
    *,
    platform_defaults: Mapping[str, Value] | None = None,
    operator_aliases: Mapping[str, Iterable[str]] | None = None,
    vendors: Iterable[str] | None = None,
) -> Config:
    """Read and check all settings.

    Args:
        prefix: of the variables, for example ``"SGLANG_FL_"``.
        environ: ``os.environ`` when omitted.
        platform_defaults: settings of the platform in use, by key; the file and the environment override them.
        operator_aliases: further names accepted in the white and black list (a framework's layer classes), each with the
            operators it stands for.
        vendors: names of the installed vendors; read from the installed distributions when omitted.

    Raises:
        ConfigError: an unknown key, variable, operator, vendor or token, a malformed value, a missing or unreadable file;
            the message names it, where it was found, and the closest valid name.
    """
    environ = os.environ if environ is None else environ
    known_vendors = _installed_vendor_names() if vendors is None else frozenset(vendors)
    aliases = {op: (op,) for op in ops.STANDARD_OPERATORS}
    aliases.update({name: tuple(targets) for name, targets in (operator_aliases or {}).items()})
    parser = _Parser(aliases, known_vendors)
    values: dict[str, Value] = {setting.key: setting.default for setting in SETTINGS}
    origins: dict[str, str] = {}

    def apply(layer: Mapping[str, Value], origin: Callable[[str], str]) -> None:
        for key, raw in layer.items():
            values[key] = parser.parse(_BY_KEY[key], raw, values[key], origin(key))
            origins[key] = origin(key)

    apply(_checked_keys(platform_defaults or {}, "platform default"), lambda _: "platform default")
    from_environment = _environment_layer(prefix, environ)
    path = from_environment.pop("config", None)
    if path is not None:
        apply(_checked_keys(_read_file(path, f"{prefix}CONFIG"), path), lambda _: str(path))
    apply(from_environment, lambda key: prefix + key.upper())

    flaggems = environ.get(USE_FLAGGEMS, "").strip()
    if flaggems:
        origins["use_flaggems"] = USE_FLAGGEMS
    policy = SelectionPolicy(
        prefer=values["prefer"],
        per_op=values["per_op"],
        deny_vendors=frozenset(values["deny_vendors"]),
        allow_vendors=None if values["allow_vendors"] is None else frozenset(values["allow_vendors"]),
        strict=values["strict"],
    )
    return Config(
        prefix=prefix,
        policy=policy,
        oot_whitelist=None if values["oot_whitelist"] is None else frozenset(values["oot_whitelist"]),
        oot_blacklist=frozenset(values["oot_blacklist"]),
        report=values["report"],
        use_flaggems=_flag(flaggems, USE_FLAGGEMS) if flaggems else True,
        origins=MappingProxyType(origins),
    )


def flaggems_wanted(environ: Mapping[str, str] | None = None) -> bool:
    """Whether ``USE_FLAGGEMS`` leaves FlagGems on; ``0`` means that it is not even imported."""
    value = (os.environ if environ is None else environ).get(USE_FLAGGEMS, "").strip()
    return _flag(value, USE_FLAGGEMS) if value else True


def _installed_vendor_names() -> frozenset[str]:
    from fl_dispatch.discovery import installed_vendors

    return frozenset(installed_vendors())


def _environment_layer(prefix: str, environ: Mapping[str, str]) -> dict[str, str]:
    layer = {}
    for name in sorted(environ):
        if not name.startswith(prefix):
            continue
        key = name.removeprefix(prefix).lower()
        if key not in _BY_KEY or name != prefix + key.upper():
            hint = did_you_mean(name, [prefix + setting.key.upper() for setting in SETTINGS])
            raise ConfigError(f"unknown environment variable {name}; {hint}")
        if environ[name].strip():
            layer[key] = environ[name].strip()
    return layer


def _read_file(path: str, named_by: str) -> Mapping[str, Value]:
    import yaml

    try:
        with open(path, encoding="utf-8") as stream:
            content = yaml.safe_load(stream)
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {path!r} named by {named_by}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: the file must hold settings by key, not a {type(content).__name__}")
    return content


def _checked_keys(layer: Mapping[str, Value], where: str) -> Mapping[str, Value]:
    in_file = [setting.key for setting in SETTINGS if setting.in_file]
    for key in layer:
        if key not in in_file:
            raise ConfigError(f"{where}: unknown key {key!r}; {did_you_mean(str(key), in_file)}")
    return layer


def _flag(value: Value, where: str) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in _TRUE | _FALSE:
        return word in _TRUE
    raise ConfigError(f"{where}: {value!r} is neither on nor off; use 1 or 0")


class _Parser:
    """Turns raw values (strings from the environment, YAML values from files) into checked ones."""

    def __init__(self, operator_aliases: Mapping[str, tuple[str, ...]], vendors: frozenset[str]) -> None:
        self._aliases = operator_aliases
        self._installed = vendors

    def parse(self, setting: Setting, raw: Value, lower: Value, where: str) -> Value:
        """Check one value; ``lower`` is the value of the layers below, which lists may add to."""
        return getattr(self, f"_{setting.form}")(raw, lower, where)

    def _flag(self, raw: Value, lower: Value, where: str) -> bool:
        return _flag(raw, where)

    def _path(self, raw: Value, lower: Value, where: str) -> str:
        if not isinstance(raw, str) or not raw:
            raise ConfigError(f"{where}: a path must be a non-empty string, not {raw!r}")
        return raw

    def _order(self, raw: Value, lower: Value, where: str) -> tuple[str, ...]:
        words = raw.replace("|", ",").split(",") if isinstance(raw, str) else raw
        if not isinstance(words, (list, tuple)):
            raise ConfigError(f"{where}: an order is a token or a list of tokens, not {raw!r}")
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
                    raise ConfigError(f"{where}: {item!r} is not OPERATOR=TOKEN|TOKEN, for example rms_norm=vendor|reference")
                pairs.append((op_name.strip(), order))
            raw = dict(pairs)
        if not isinstance(raw, Mapping):
            raise ConfigError(f"{where}: orders by operator are a mapping, not {raw!r}")
        # Operators not named here keep what a lower layer said about them.
        merged = dict(lower)
        for op_name, order in raw.items():
            if op_name not in ops.STANDARD_OPERATORS:
                raise ConfigError(f"{where}: unknown operator {op_name!r}; {did_you_mean(str(op_name), ops.STANDARD_OPERATORS)}")
            merged[op_name] = self._order(order, (), f"{where}[{op_name}]")
        return merged

    def _operators(self, raw: Value, lower: Value, where: str) -> frozenset[str]:
        return self._names(raw, lower, where, self._operator_name)

    def _vendors(self, raw: Value, lower: Value, where: str) -> frozenset[str]:
        return self._names(raw, lower, where, self._vendor_name)

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
                raise ConfigError(f"{where}: a list is replaced by a list, or added to with {{append: [...]}}; got {raw!r}")
            base, raw = lower or (), raw["append"]
        elif isinstance(raw, str) and raw.startswith("+"):
            base, raw = lower or (), raw[1:]
        if isinstance(raw, str):
            raw = [word.strip() for word in raw.split(",") if word.strip()]
            if raw == [_WORD_FOR_NOTHING]:
                raw = []
        if not isinstance(raw, (list, tuple, set, frozenset)) or not all(isinstance(word, str) for word in raw):
            raise ConfigError(f"{where}: expected a list of names, not {raw!r}")
        return frozenset(base) | {target for word in raw for target in resolve(word, where)}
