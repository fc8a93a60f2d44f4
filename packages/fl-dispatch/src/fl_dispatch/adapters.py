# SPDX-License-Identifier: Apache-2.0
"""Whose settings count in this environment: the prefixes of the variables, and what an adapter adds to their reading.

Only installed metadata is looked at; no framework is imported. An adapter whose white and black list take more names
than the standard operators (its framework's layer classes), or whose platform has defaults, says so in the entry-point
group ``fl_dispatch.config``: the name is its prefix, the object a function without arguments that returns keyword
arguments of ``load_config`` (``operator_aliases``, ``platform_defaults``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import TYPE_CHECKING, Any

from fl_dispatch.config import Config, load_config
from fl_dispatch.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from fl_dispatch.native import FrameworkLayer

#: Prefix of programs that use fl-dispatch without an adapter.
CORE_PREFIX = "FL_DISPATCH_"
#: Prefix to the distribution that reads it.
ADAPTERS = {"SGLANG_FL_": "sglang-fl", "VLLM_FL_": "vllm-fl-adapter"}
CONFIG_GROUP = "fl_dispatch.config"
#: Group in which an adapter offers its framework's layers to be measured: the name is its prefix, the object a function
#: ``(op_name, sizes, dtype, device) -> FrameworkLayer``, which may raise a reason.
LAYER_GROUP = "fl_dispatch.layers"
_READER_ARGUMENTS = {"operator_aliases", "platform_defaults"}


@dataclass(frozen=True)
class PrefixChoice:
    """A prefix and why it is the one that counts."""

    prefix: str
    why: str


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution, from its metadata; None when it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def known_prefixes() -> tuple[str, ...]:
    """All prefixes: the core's, the adapters' known by name, and those that installed adapters announce."""
    announced = {point.name for point in entry_points(group=CONFIG_GROUP)}
    return (CORE_PREFIX, *sorted({*ADAPTERS, *announced}))


def adapter_of(prefix: str) -> str | None:
    """The installed distribution that reads this prefix; None for the core's own or when it is not installed."""
    named = ADAPTERS.get(prefix)
    if named is not None and installed_version(named) is not None:
        return named
    for point in entry_points(group=CONFIG_GROUP):
        if point.name == prefix and point.dist is not None:
            return point.dist.name
    return None


def variables_set(prefix: str, environ: Mapping[str, str]) -> list[str]:
    """Names of the non-empty variables with this prefix."""
    return sorted(name for name in environ if name.startswith(prefix) and environ[name].strip())


def prefix_in_use(asked: str | None = None, environ: Mapping[str, str] | None = None) -> PrefixChoice:
    """The prefix that counts: the one asked for, else that of the installed adapter, else ``FL_DISPATCH_``.

    With several adapters installed it is the one of which variables are set, when that is one alone.

    Raises:
        ConfigError: ``asked`` is no known prefix.
    """
    environ = os.environ if environ is None else environ
    if asked is not None:
        if asked not in known_prefixes():
            raise ConfigError(f"unknown prefix {asked!r}; {did_you_mean(asked, known_prefixes())}")
        return PrefixChoice(asked, "asked for with --prefix")
    installed = {prefix: name for prefix in known_prefixes() if (name := adapter_of(prefix)) is not None}
    if len(installed) > 1:
        in_use = [prefix for prefix in installed if variables_set(prefix, environ)]
        if len(in_use) == 1:
            return PrefixChoice(in_use[0], f"of the installed adapters only {installed[in_use[0]]} has variables set")
        return PrefixChoice(CORE_PREFIX, f"{', '.join(installed.values())} are installed: pick one with --prefix")
    for prefix, name in installed.items():
        return PrefixChoice(prefix, f"{name} is installed")
    return PrefixChoice(CORE_PREFIX, "no adapter is installed")


def framework_layers(prefix: str) -> Callable[..., FrameworkLayer] | None:
    """What the adapter of this prefix offers in ``LAYER_GROUP``; None where it offers nothing.

    Raises:
        ConfigError: it does not load.
    """
    for point in entry_points(group=LAYER_GROUP):
        if point.name == prefix:
            try:
                loaded: Callable[..., FrameworkLayer] = point.load()
            except Exception as error:  # an adapter may raise anything; it is named with its exception
                raise ConfigError(f"{point.value} does not load: {type(error).__name__}: {error}") from error
            return loaded
    return None


def load_settings(prefix: str, environ: Mapping[str, str] | None = None) -> Config:
    """``load_config`` as the adapter of this prefix calls it.

    Raises:
        ConfigError: a setting is wrong, or the adapter cannot say how its settings are read.
    """
    arguments: dict[str, Any] = {}
    for point in entry_points(group=CONFIG_GROUP):
        if point.name != prefix:
            continue
        try:
            arguments = dict(point.load()())
        except Exception as error:  # an adapter may raise anything; it is named with its exception
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(f"{point.value} cannot say how {prefix}* is read: {reason}") from error
        unknown = sorted(set(arguments) - _READER_ARGUMENTS)
        if unknown:
            known = ", ".join(sorted(_READER_ARGUMENTS))
            raise ConfigError(f"{point.value} gives unknown arguments {', '.join(unknown)}; known: {known}")
    return load_config(prefix, environ, **arguments)
