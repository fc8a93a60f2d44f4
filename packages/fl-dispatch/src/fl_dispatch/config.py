# SPDX-License-Identifier: Apache-2.0
"""The only reader of environment variables and configuration files.

One table of settings, one parser, one precedence: environment > file > platform default > built-in. The prefix is a
parameter, so that SGLang (``SGLANG_FL_``), vLLM (``VLLM_FL_``) and plain use (``FL_DISPATCH_``) read alike.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from fl_dispatch import ops
from fl_dispatch.config_values import Value, ValueParser, parse_flag
from fl_dispatch.errors import ConfigError, did_you_mean
from fl_dispatch.policy import SelectionPolicy
from fl_dispatch.settings_file import read_settings


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
    Setting(
        "prefer",
        "order",
        "Tokens tried first for every operator, most wanted first.",
        ("flagos", "vendor", "reference"),
    ),
    Setting("per_op", "orders", "For single operators: tokens tried before `prefer`.", MappingProxyType({})),
    Setting("strict", "flag", "The first token must be able, and nothing ever falls back.", False),
    Setting("deny_vendors", "vendors", "Vendors never used and never imported.", ()),
    Setting("allow_vendors", "vendors", "If set, the only vendors used; the others are not imported.", None),
    Setting("oot_whitelist", "operators", "If set, the only operators taken over from the framework.", None),
    Setting("oot_blacklist", "operators", "Operators left to the framework's own method.", ()),
    Setting("report", "path", "Where each worker writes its JSON report; the rank is put into the name.", None),
    Setting("compare", "flag", "Judge every eager call against float64, into the report; slow.", False),
    Setting("flagos_aten", "flag", "Workers let FlagGems replace PyTorch's own (ATen) operators.", False),
    Setting("flagos_whitelist", "aten_operators", "If set, the only ATen operators that FlagGems replaces.", None),
    Setting("flagos_blacklist", "aten_operators", "ATen operators left to PyTorch.", ()),
    Setting(
        "flagos_record",
        "path",
        "Where each worker notes which replaced ATen operators served; one file a process.",
        None,
    ),
    Setting("config", "path", "A YAML file with the settings above, by key.", None, in_file=False),
)
_BY_KEY = {setting.key: setting for setting in SETTINGS}

#: Read without a prefix, as in FlagGems itself.
USE_FLAGGEMS = "USE_FLAGGEMS"


#: In a file that ``fl-dispatch tune`` wrote: where the orders come from. It says nothing about what is to be done.
TUNED = "tuned"


@dataclass(frozen=True)
class Config:
    """The settings in force, with where each came from (``built-in``, ``platform default``, a file, a variable).

    ``tuned`` is what a file of ``fl-dispatch tune`` says about its measurements.
    """

    prefix: str
    policy: SelectionPolicy
    oot_whitelist: frozenset[str] | None = None
    oot_blacklist: frozenset[str] = frozenset()
    report: str | None = None
    compare: bool = False
    flagos_aten: bool = False
    flagos_whitelist: frozenset[str] | None = None
    flagos_blacklist: frozenset[str] = frozenset()
    flagos_record: str | None = None
    tuned: Mapping[str, Any] | None = None
    use_flaggems: bool = True
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_off(self) -> bool:
        """Whether the white list is empty (``none``): every layer is the framework's, and no vendor need be imported."""
        return self.oot_whitelist is not None and not self.oot_whitelist

    def takes_over(self, op_name: str) -> str | None:
        """None when the operator is taken over from the framework, else which list leaves it out."""
        if op_name in self.oot_blacklist:
            return f"in the black list ({self.origins.get('oot_blacklist', 'oot_blacklist')})"
        if self.oot_whitelist is not None and op_name not in self.oot_whitelist:
            return f"not in the white list ({self.origins.get('oot_whitelist', 'oot_whitelist')})"
        return None

    def as_dict(self) -> dict[str, object]:
        """Key to value and origin, for reports and the command line."""
        policy = self.policy.as_dict()
        by_tokens = policy.pop("by_tokens")
        values: dict[str, Any] = dict(policy)
        values["per_op"] = {**values["per_op"], **by_tokens}
        values["oot_whitelist"] = None if self.oot_whitelist is None else sorted(self.oot_whitelist)
        values["oot_blacklist"] = sorted(self.oot_blacklist)
        values["report"] = self.report
        values["compare"] = self.compare
        values["flagos_aten"] = self.flagos_aten
        values["flagos_whitelist"] = None if self.flagos_whitelist is None else sorted(self.flagos_whitelist)
        values["flagos_blacklist"] = sorted(self.flagos_blacklist)
        values["flagos_record"] = self.flagos_record
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
        operator_aliases: further names accepted in the white and black list (a framework's layer classes), each with
            the operators it stands for.
        vendors: names of the installed vendors; read from the installed distributions when omitted.

    Raises:
        ConfigError: an unknown key, variable, operator, vendor or token, a malformed value, a missing or unreadable
            file; the message names it, where it was found, and the closest valid name.
    """
    environ = os.environ if environ is None else environ
    known_vendors = _installed_vendor_names() if vendors is None else frozenset(vendors)
    aliases: dict[str, tuple[str, ...]] = {op: (op,) for op in ops.STANDARD_OPERATORS}
    aliases.update({name: tuple(targets) for name, targets in (operator_aliases or {}).items()})
    parser = ValueParser(aliases, known_vendors)
    values: dict[str, Value] = {setting.key: setting.default for setting in SETTINGS}
    origins: dict[str, str] = {}

    def apply(layer: Mapping[str, Value], origin: str) -> None:
        for key, raw in layer.items():
            # A variable is named by its own name, a key in a file or platform by both.
            where = origin + key.upper() if origin == prefix else f"{origin}: {key}"
            values[key] = parser.parse(_BY_KEY[key].form, raw, values[key], where)
            origins[key] = origin + key.upper() if origin == prefix else origin

    apply(_checked_keys(platform_defaults or {}, "platform default"), "platform default")
    from_environment = _environment_layer(prefix, environ)
    path = from_environment.pop("config", None)
    tuned = None
    if path is not None:
        content = dict(read_settings(path, f"{prefix}CONFIG"))
        tuned = _tuned(content.pop(TUNED, None), path)
        apply(_checked_keys(content, path), path)
    apply(from_environment, prefix)

    _check_together(values, origins, prefix)
    flaggems = environ.get(USE_FLAGGEMS, "").strip()
    if flaggems:
        origins["use_flaggems"] = USE_FLAGGEMS
    by_tokens: Any = {op: order for op, order in values["per_op"].items() if isinstance(order, Mapping)}
    policy = SelectionPolicy(
        prefer=values["prefer"],
        per_op={op: order for op, order in values["per_op"].items() if not isinstance(order, Mapping)},
        by_tokens=by_tokens,
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
        compare=values["compare"],
        flagos_aten=values["flagos_aten"],
        flagos_whitelist=None if values["flagos_whitelist"] is None else frozenset(values["flagos_whitelist"]),
        flagos_blacklist=frozenset(values["flagos_blacklist"]),
        flagos_record=values["flagos_record"],
        tuned=tuned,
        use_flaggems=parse_flag(flaggems, USE_FLAGGEMS) if flaggems else True,
        origins=MappingProxyType(origins),
    )


def _check_together(values: Mapping[str, Value], origins: Mapping[str, str], prefix: str) -> None:
    """A setting without the one that gives it an effect: whoever wrote it expects that it has one."""
    if values["compare"] and values["report"] is None:
        raise ConfigError(
            f"{origins['compare']}: compare writes what it finds into the report, and there is none; "
            f"set {prefix}REPORT=report.json too"
        )
    given = [key for key in ("flagos_whitelist", "flagos_blacklist", "flagos_record") if key in origins]
    if given and "flagos_aten" not in origins:
        raise ConfigError(
            f"{origins[given[0]]}: {given[0]} has no effect while ATen's operators are not replaced; "
            f"set {prefix}FLAGOS_ATEN=1 to replace them, or 0 to keep it for later"
        )


def flaggems_wanted(environ: Mapping[str, str] | None = None) -> bool:
    """Whether ``USE_FLAGGEMS`` leaves FlagGems on; ``0`` means that it is not even imported."""
    value = (os.environ if environ is None else environ).get(USE_FLAGGEMS, "").strip()
    return parse_flag(value, USE_FLAGGEMS) if value else True


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


def _tuned(value: Value, path: str) -> Mapping[str, Any] | None:
    if value is not None and not isinstance(value, dict):
        raise ConfigError(f"{path}: {TUNED} is what `fl-dispatch tune` measured, a mapping, not {value!r}")
    return value


def _checked_keys(layer: Mapping[str, Value], where: str) -> Mapping[str, Value]:
    in_file = [setting.key for setting in SETTINGS if setting.in_file]
    for key in layer:
        if key not in in_file:
            raise ConfigError(f"{where}: unknown key {key!r}; {did_you_mean(str(key), in_file)}")
    return layer
