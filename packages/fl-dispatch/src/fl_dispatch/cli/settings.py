# SPDX-License-Identifier: Apache-2.0
"""The settings a command works with: ``--prefix``, ``--json``, and ``--policy`` on top of the environment."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

from fl_dispatch.adapters import ADAPTERS, CORE_PREFIX, PrefixChoice, load_settings, prefix_in_use
from fl_dispatch.config import SETTINGS, Config
from fl_dispatch.errors import ConfigError, did_you_mean

_KEYS = [setting.key for setting in SETTINGS if setting.in_file]


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--prefix`` and ``--json``."""
    prefixes = ", ".join((CORE_PREFIX, *ADAPTERS))
    parser.add_argument(
        "--prefix",
        metavar="PREFIX",
        help=f"whose variables to read: {prefixes} (default: that of the installed adapter, else {CORE_PREFIX})",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def read(args: argparse.Namespace) -> tuple[PrefixChoice, Config]:
    """The prefix that counts and the settings in force; raises ConfigError."""
    choice = prefix_in_use(args.prefix)
    policy = getattr(args, "policy", None)
    environ = os.environ if policy is None else {**os.environ, **_as_variables(policy, choice.prefix)}
    return choice, load_settings(choice.prefix, environ)


def headline(choice: PrefixChoice) -> str:
    """The first line of a command's text: whose settings it used."""
    return f"settings: {choice.prefix}* ({choice.why})"


def _as_variables(policy: str, prefix: str) -> Mapping[str, str]:
    """``--policy`` as the variables it stands for, so that one reader checks both.

    ``prefer=vendor,reference,strict=1`` is two settings: a comma starts a new one only where ``KEY=`` follows.
    """
    path = Path(policy)
    if path.exists() and not path.is_dir():
        return {f"{prefix}CONFIG": policy}
    if "=" not in policy:
        raise ConfigError(f"--policy: there is no file {policy!r}; settings are written like prefer=vendor,strict=1")
    settings: dict[str, str] = {}
    key = ""
    for part in policy.split(","):
        head, equals, value = part.partition("=")
        if equals and head.strip() in _KEYS:
            key = head.strip()
            settings[key] = value
        elif equals and key == "per_op":
            settings[key] += ";" + part
        elif equals:
            raise ConfigError(f"--policy: unknown key {head.strip()!r}; {did_you_mean(head.strip(), _KEYS)}")
        elif key:
            settings[key] += "," + part
        else:
            raise ConfigError(f"--policy: {part!r} is not KEY=VALUE; settings are written like prefer=vendor,strict=1")
    return {prefix + key.upper(): value for key, value in settings.items()}
