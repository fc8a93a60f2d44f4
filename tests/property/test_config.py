# SPDX-License-Identifier: Apache-2.0
"""Configuration: the environment and files say the same things, and garbage is always a ``ConfigError``."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fl_dispatch import ConfigError, load_config
from fl_dispatch.config import SETTINGS
from fl_dispatch.ops import STANDARD_OPERATORS

PREFIX = "SGLANG_FL_"
VENDORS = ("acme", "bolt", "core")
IN_FILE = [setting.key for setting in SETTINGS if setting.in_file]

operators = st.sampled_from(sorted(STANDARD_OPERATORS))
tokens = st.sampled_from(
    ("flagos", "vendor", "reference", "vendor:acme", "vendor:bolt", "impl:vendor.acme", "impl:x.y")
)
orders = st.lists(tokens, min_size=1, max_size=4)
aten_operators = st.sampled_from(("add", "mm.out", "softmax"))
paths = st.text("abc/._- ", min_size=1).map(str.strip).filter(bool)


@st.composite
def settings(draw):
    """Valid settings by key, as a file holds them."""
    denied = draw(st.sets(st.sampled_from(VENDORS), max_size=2))
    values = {
        "prefer": draw(orders),
        "per_op": draw(st.dictionaries(operators, orders)),
        "strict": draw(st.booleans()),
        "deny_vendors": sorted(denied),
        "allow_vendors": sorted(draw(st.sets(st.sampled_from(VENDORS))) - denied),
        "oot_whitelist": sorted(draw(st.sets(operators))),
        "oot_blacklist": sorted(draw(st.sets(operators))),
        "report": draw(paths),
        "compare": draw(st.booleans()),
        "flagos_aten": draw(st.booleans()),
        "flagos_whitelist": sorted(draw(st.sets(aten_operators))),
        "flagos_blacklist": sorted(draw(st.sets(aten_operators))),
        "flagos_record": draw(paths),
    }
    keys = draw(st.sets(st.sampled_from(IN_FILE)))
    if any(key.startswith("flagos_") for key in keys):
        keys.add("flagos_aten")  # the others are an error without it
    if "compare" in keys:
        keys.add("report")  # likewise
    return {key: values[key] for key in keys}


def as_variables(values):
    """The same settings as the environment holds them."""
    variables = {}
    for key, value in values.items():
        if key == "per_op":
            text = ";".join(f"{op}={'|'.join(order)}" for op, order in value.items())
        elif key in ("report", "flagos_record"):
            text = value
        elif key in ("strict", "compare", "flagos_aten"):
            text = "1" if value else "0"
        else:
            text = ",".join(value) or "none"
        variables[PREFIX + key.upper()] = text
    return variables


def load(values=None, environ=None, platform=None, content=None):
    if values is None and content is None:
        return load_config(PREFIX, environ or {}, platform_defaults=platform, vendors=VENDORS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fl.yaml"
        path.write_bytes(yaml.safe_dump(values).encode() if content is None else content)
        environ = {PREFIX + "CONFIG": str(path), **(environ or {})}
        return load_config(PREFIX, environ, platform_defaults=platform, vendors=VENDORS)


def meaning(config):
    return config.policy, {key: entry["value"] for key, entry in config.as_dict().items()}


@given(settings())
def test_environment_file_and_platform_say_the_same(values):
    by_variable = meaning(load(environ=as_variables(values)))
    assert by_variable == meaning(load(values)) == meaning(load(platform=values))


@given(settings())
def test_what_is_written_is_what_is_read(values):
    config = load(environ=as_variables(values))
    read = {key: entry["value"] for key, entry in config.as_dict().items()}
    for key, value in values.items():
        assert read[key] == (sorted(value) if key.startswith(("deny", "allow")) or key.endswith("list") else value)
    assert set(config.origins) == {key for key in values if as_variables(values)[PREFIX + key.upper()]}


@given(settings(), settings())
def test_the_environment_wins_key_by_key(file, variables):
    if variables.get("per_op") == {}:
        del variables["per_op"]
    both = {**file, **variables}
    if "per_op" in file and "per_op" in variables:
        both["per_op"] = {**file["per_op"], **variables["per_op"]}
    try:
        expected = meaning(load(both))
    except ConfigError:
        with pytest.raises(ConfigError):
            load(file, as_variables(variables))
    else:
        assert meaning(load(file, as_variables(variables))) == expected


@given(st.sets(operators), st.sets(operators))
def test_appending_joins_and_replacing_replaces(lower, upper):
    platform = {"oot_blacklist": sorted(lower)}
    text = ",".join(sorted(upper))
    assert load(environ={PREFIX + "OOT_BLACKLIST": "+" + text}, platform=platform).oot_blacklist == lower | upper
    assert load({"oot_blacklist": {"append": sorted(upper)}}, platform=platform).oot_blacklist == lower | upper
    assert load({"oot_blacklist": sorted(upper)}, platform=platform).oot_blacklist == upper


def only_configuration_errors(attempt):
    with contextlib.suppress(ConfigError):
        attempt()


@given(st.dictionaries(st.sampled_from([s.key.upper() for s in SETTINGS]), st.text(max_size=30)))
def test_garbage_in_variables_is_a_configuration_error(garbage):
    only_configuration_errors(lambda: load(environ={PREFIX + key: text for key, text in garbage.items()}))


@given(st.text(max_size=20))
def test_an_unknown_variable_is_a_configuration_error(name):
    only_configuration_errors(lambda: load(environ={PREFIX + name: "1"}))


yaml_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(IN_FILE) | st.text(max_size=5) | st.integers(), yaml_values, max_size=3))
def test_garbage_in_a_file_is_a_configuration_error(garbage):
    only_configuration_errors(lambda: load(garbage))


@given(st.binary(max_size=60))
def test_any_bytes_as_a_file_are_a_configuration_error_at_most(content):
    only_configuration_errors(lambda: load(content=content))


@given(st.text(alphabet="{}[]:,-!&*|>'\"%@#? \nabc01.=<~", max_size=60))
def test_any_yaml_punctuation_is_a_configuration_error_at_most(text):
    only_configuration_errors(lambda: load(content=text.encode()))
