# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from types import MappingProxyType

import pytest

from fl_dispatch import ConfigError, SelectionPolicy, load_config
from fl_dispatch.config import SETTINGS, flaggems_wanted

PREFIX = "SGLANG_FL_"


@pytest.fixture
def load(tmp_path):
    """Load from variables (without the prefix), the text of a file, and defaults of a platform."""

    def load(file=None, platform=None, aliases=None, prefix=PREFIX, **variables):
        environ = {prefix + key: value for key, value in variables.items()}
        if file is not None:
            path = tmp_path / "fl.yaml"
            path.write_bytes(file if isinstance(file, bytes) else file.encode())
            environ[prefix + "CONFIG"] = str(path)
        return load_config(
            prefix, environ, platform_defaults=platform, operator_aliases=aliases, vendors=["acme", "other"]
        )

    return load


def error_of(load, **given):
    with pytest.raises(ConfigError) as caught:
        load(**given)
    return str(caught.value)


def test_nothing_set_gives_the_built_in_values(load):
    config = load()
    assert config.policy == SelectionPolicy()
    assert (config.oot_whitelist, config.oot_blacklist, config.report) == (None, frozenset(), None)
    assert config.use_flaggems is True
    assert {entry["from"] for entry in config.as_dict().values()} == {"built-in"}


def test_every_setting_can_be_given_by_variable(load):
    config = load(
        PREFER="vendor:acme,reference", PER_OP="rms_norm=reference|vendor; silu_and_mul=impl:vendor.acme", STRICT="yes",
        DENY_VENDORS="other", ALLOW_VENDORS="acme", OOT_WHITELIST="rms_norm, silu_and_mul", OOT_BLACKLIST="rms_norm",
        REPORT="/tmp/report.json",
    )  # fmt: skip
    assert config.policy == SelectionPolicy(
        prefer=("vendor:acme", "reference"),
        per_op={"rms_norm": ("reference", "vendor"), "silu_and_mul": ("impl:vendor.acme",)},
        strict=True,
        deny_vendors={"other"},
        allow_vendors={"acme"},
    )
    assert config.oot_whitelist == {"rms_norm", "silu_and_mul"}
    assert config.oot_blacklist == {"rms_norm"}
    assert config.report == "/tmp/report.json"
    assert config.as_dict()["strict"] == {"value": True, "from": "SGLANG_FL_STRICT"}


def test_every_setting_can_be_given_in_the_file(load):
    config = load(
        """
        prefer: [vendor:acme, reference]
        per_op: {rms_norm: [reference, vendor], silu_and_mul: impl:vendor.acme}
        strict: true
        deny_vendors: [other]
        allow_vendors: [acme]
        oot_whitelist: [rms_norm]
        oot_blacklist: rms_norm
        report: /tmp/report.json
        compare: true
        flagos_aten: true
        flagos_whitelist: [mm, add.Tensor]
        flagos_blacklist: [add.Tensor]
        flagos_record: /tmp/aten.txt
        """
    )
    assert config.policy.per_op == {"rms_norm": ("reference", "vendor"), "silu_and_mul": ("impl:vendor.acme",)}
    assert config.policy.strict
    assert config.compare
    assert config.oot_blacklist == {"rms_norm"}
    assert (config.flagos_aten, config.flagos_record) == (True, "/tmp/aten.txt")
    assert (config.flagos_whitelist, config.flagos_blacklist) == ({"mm", "add.Tensor"}, {"add.Tensor"})
    assert set(config.origins) == {setting.key for setting in SETTINGS if setting.in_file}


PRECEDENCE = {
    "prefer": ("flagos", "vendor", "reference", lambda c: c.policy.prefer[0]),
    "strict": (False, True, "0", lambda c: c.policy.strict),
    "deny_vendors": (["acme"], ["other"], "acme", lambda c: c.policy.deny_vendors),
    "allow_vendors": (["acme"], ["other"], "acme", lambda c: c.policy.allow_vendors),
    "oot_whitelist": (["rms_norm"], ["silu_and_mul"], "rms_norm", lambda c: c.oot_whitelist),
    "oot_blacklist": (["rms_norm"], ["silu_and_mul"], "rms_norm", lambda c: c.oot_blacklist),
    "report": ("platform.json", "file.json", "environment.json", lambda c: c.report),
}


@pytest.mark.parametrize("key", PRECEDENCE)
def test_environment_before_file_before_platform_before_built_in(load, key):
    import json

    platform, file, variable, read = PRECEDENCE[key]
    by_platform = read(load(platform={key: platform}))
    by_file = read(load(json.dumps({key: file}), {key: platform}))
    by_variable = read(load(json.dumps({key: file}), {key: platform}, **{key.upper(): variable}))
    assert by_file != by_platform
    assert by_file == read(load(json.dumps({key: file})))
    assert by_variable == read(load(**{key.upper(): variable}))
    assert by_variable != by_file


def test_precedence_is_per_key(load):
    config = load("strict: true\nreport: file.json", {"prefer": "vendor", "report": "p.json"}, REPORT="e.json")
    assert (config.policy.prefer, config.policy.strict, config.report) == (("vendor",), True, "e.json")
    assert config.origins["prefer"] == "platform default"
    assert config.origins["strict"].endswith("fl.yaml")
    assert config.origins["report"] == "SGLANG_FL_REPORT"


def test_per_op_orders_are_joined_operator_by_operator(load):
    config = load("per_op: {rms_norm: vendor, silu_and_mul: vendor}", PER_OP="rms_norm=reference")
    assert config.policy.per_op == {"rms_norm": ("reference",), "silu_and_mul": ("vendor",)}


@pytest.mark.parametrize("prefix", ["FL_DISPATCH_", "SGLANG_FL_", "VLLM_FL_"])
def test_the_prefix_is_a_parameter(load, prefix):
    assert load(prefix=prefix, STRICT="1").policy.strict
    assert load_config(prefix, {"OTHER_STRICT": "1"}, vendors=[]).policy.strict is False


def test_an_empty_variable_is_as_good_as_none(load):
    assert load("strict: true", STRICT=" ", PREFER="").policy.strict is True


class TestLists:
    LOWER = MappingProxyType({"oot_blacklist": ["rms_norm"]})

    def test_a_list_replaces(self, load):
        assert load(platform=self.LOWER, OOT_BLACKLIST="silu_and_mul").oot_blacklist == {"silu_and_mul"}

    def test_a_plus_appends(self, load):
        config = load(platform=self.LOWER, OOT_BLACKLIST="+silu_and_mul, gelu_and_mul")
        assert config.oot_blacklist == {"rms_norm", "silu_and_mul", "gelu_and_mul"}

    def test_append_in_a_file_appends(self, load):
        config = load("oot_blacklist: {append: [silu_and_mul]}", self.LOWER)
        assert config.oot_blacklist == {"rms_norm", "silu_and_mul"}

    def test_appends_add_up(self, load):
        config = load("oot_blacklist: {append: silu_and_mul}", self.LOWER, OOT_BLACKLIST="+gelu_and_mul")
        assert config.oot_blacklist == {"rms_norm", "silu_and_mul", "gelu_and_mul"}

    def test_none_empties(self, load):
        assert load(platform=self.LOWER, OOT_BLACKLIST="none").oot_blacklist == frozenset()
        assert load("oot_blacklist: none", self.LOWER).oot_blacklist == frozenset()
        assert load("oot_blacklist: []", self.LOWER).oot_blacklist == frozenset()
        assert load(OOT_WHITELIST="none").oot_whitelist == frozenset()

    def test_appending_where_nothing_limits_is_an_error(self, load):
        assert error_of(load, ALLOW_VENDORS="+acme") == (
            "SGLANG_FL_ALLOW_VENDORS: there is no list below it to add to; give the whole list, without + or append"
        )

    def test_another_mapping_is_an_error(self, load):
        message = error_of(load, file="oot_blacklist: {add: [rms_norm]}")
        assert message.endswith("fl.yaml: oot_blacklist: a list is replaced by a list, or added to with "
                                "{append: [...]}; got {'add': ['rms_norm']}")  # fmt: skip

    def test_a_class_name_stands_for_its_operators(self, load):
        aliases = {"RMSNorm": ["rms_norm"], "GeluAndMul": ["gelu_and_mul", "gelu_tanh_and_mul"]}
        config = load(aliases=aliases, OOT_WHITELIST="RMSNorm,silu_and_mul", OOT_BLACKLIST="GeluAndMul")
        assert config.oot_whitelist == {"rms_norm", "silu_and_mul"}
        assert config.oot_blacklist == {"gelu_and_mul", "gelu_tanh_and_mul"}


def test_takes_over_says_which_list_leaves_an_operator_out(load):
    config = load("oot_whitelist: [rms_norm, silu_and_mul]", OOT_BLACKLIST="silu_and_mul")
    assert config.takes_over("rms_norm") is None
    assert config.takes_over("silu_and_mul") == "in the black list (SGLANG_FL_OOT_BLACKLIST)"
    assert config.takes_over("gelu_and_mul").startswith("not in the white list (")
    assert load().takes_over("rms_norm") is None


FILE = "{file}"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"PREFR": "vendor"}, "unknown environment variable SGLANG_FL_PREFR; did you mean 'SGLANG_FL_PREFER'?"),
        ({"prefer": "vendor"}, "unknown environment variable SGLANG_FL_prefer; did you mean 'SGLANG_FL_PREFER'?"),
        ({"file": "prefr: vendor"}, "{file}: unknown key 'prefr'; did you mean 'prefer'?"),
        ({"file": "config: other.yaml"}, "{file}: unknown key 'config'; known: "),
        ({"file": "1: 2"}, "{file}: unknown key 1; known: "),
        ({"platform": {"prefr": "vendor"}}, "platform default: unknown key 'prefr'; did you mean 'prefer'?"),
        ({"OOT_WHITELIST": "rmsnorm"}, "SGLANG_FL_OOT_WHITELIST: unknown operator 'rmsnorm'; did you mean 'rms_norm'?"),
        ({"PER_OP": "rmsnorm=vendor"}, "SGLANG_FL_PER_OP: unknown operator 'rmsnorm'; did you mean 'rms_norm'?"),
        ({"file": "per_op: {rmsnorm: vendor}"}, "{file}: per_op: unknown operator 'rmsnorm'; did you mean 'rms_norm'?"),
        ({"DENY_VENDORS": "acne"}, "SGLANG_FL_DENY_VENDORS: no installed vendor is named 'acne'; did you mean 'acme'? "
                                   "(`fl-dispatch doctor` lists installed vendors)"),
        ({"PREFER": "vendor:acne"}, "SGLANG_FL_PREFER: no installed vendor is named 'acne'; did you mean 'acme'?"),
        ({"PREFER": "vendr"}, "SGLANG_FL_PREFER: unknown selection token 'vendr'; valid tokens are"),
        ({"PREFER": "vendor,,reference"}, "SGLANG_FL_PREFER: unknown selection token ''"),
        ({"PER_OP": "rms_norm=vendr"}, "SGLANG_FL_PER_OP[rms_norm]: unknown selection token 'vendr'"),
        ({"file": "prefer: [1]"}, "{file}: prefer: a token must be a string, not 1"),
        ({"file": "prefer: 5"}, "{file}: prefer: an order is a token or a list of tokens, not 5"),
        ({"file": "prefer: []"}, "{file}: prefer: an order needs at least one token; leave the setting out"),
        ({"PER_OP": "rms_norm"}, "SGLANG_FL_PER_OP: 'rms_norm' is not OPERATOR=TOKEN|TOKEN, for example"),
        ({"PER_OP": "rms_norm="}, "SGLANG_FL_PER_OP: 'rms_norm=' is not OPERATOR=TOKEN|TOKEN, for example"),
        ({"PER_OP": "rms_norm=vendor;rms_norm=reference"}, "SGLANG_FL_PER_OP: operator 'rms_norm' is given twice"),
        ({"file": "per_op: [vendor]"}, "{file}: per_op: orders by operator are a mapping, not ['vendor']"),
        ({"STRICT": "maybe"}, "SGLANG_FL_STRICT: 'maybe' is neither on nor off; use 1 or 0"),
        ({"file": "strict: perhaps"}, "{file}: strict: 'perhaps' is neither on nor off; use 1 or 0"),
        ({"file": "oot_blacklist: 5"}, "{file}: oot_blacklist: expected a list of names, not 5"),
        ({"file": "oot_blacklist: [1]"}, "{file}: oot_blacklist: expected a list of names, not [1]"),
        ({"file": "report: 5"}, "{file}: report: a path must be a non-empty string, not 5"),
        ({"file": "- a\n- b"}, "{file}: the file must hold settings by key, not a list"),
        ({"file": "prefer: [vendor"}, "{file}: not valid YAML: while parsing a flow sequence"),
        (
            {"file": "per_op:\n  rms_norm: vendor\n  rms_norm: flagos\n"},
            "{file}: not valid YAML: the key 'rms_norm' is there twice, in lines 2 and 3; keep one of them",
        ),
        ({"file": "report: 2020-13-45"}, "{file}: not valid YAML: "),
        ({"file": "report: !!timestamp x"}, "{file}: not valid YAML: "),
        ({"file": b"report: \xff\xfe"}, "cannot read the configuration file '{file}' named by SGLANG_FL_CONFIG"),
        ({"CONFIG": "/no/such/file.yaml"}, "cannot read the configuration file '/no/such/file.yaml' named by "
                                           "SGLANG_FL_CONFIG: No such file or directory"),
        ({"CONFIG": "/"}, "cannot read the configuration file '/' named by SGLANG_FL_CONFIG: Is a directory"),
        ({"DENY_VENDORS": "acme", "ALLOW_VENDORS": "acme"}, "vendors both allowed and denied: acme; name each in one"),
    ],
)  # fmt: skip
def test_each_mistake_is_an_error_that_names_it_where_it_was_found_and_a_hint(load, tmp_path, given, message):
    assert error_of(load, **given).startswith(message.replace(FILE, str(tmp_path / "fl.yaml")))


def test_two_merges_in_a_mapping_are_no_key_that_is_there_twice(load):
    found = load("per_op: {<<: {rms_norm: reference}, <<: {silu_and_mul: flagos}}")
    assert set(found.policy.per_op) == {"rms_norm", "silu_and_mul"}


def test_an_empty_file_sets_nothing(load):
    assert load("# nothing yet\n").policy == SelectionPolicy()


@pytest.mark.parametrize("word", ["1", "true", "Yes", "ON"])
def test_on_words(load, word):
    assert load(STRICT=word).policy.strict is True


@pytest.mark.parametrize("word", ["0", "False", "no", "off"])
def test_off_words(load, word):
    assert load("strict: true", STRICT=word).policy.strict is False


def test_use_flaggems_has_no_prefix():
    assert load_config(PREFIX, {"USE_FLAGGEMS": "0"}, vendors=[]).use_flaggems is False
    assert load_config(PREFIX, {"USE_FLAGGEMS": " "}, vendors=[]).use_flaggems is True
    with pytest.raises(ConfigError, match="USE_FLAGGEMS: 'never' is neither on nor off"):
        load_config(PREFIX, {"USE_FLAGGEMS": "never"}, vendors=[])


def test_flaggems_wanted_reads_the_environment(monkeypatch):
    monkeypatch.setenv("USE_FLAGGEMS", "0")
    assert flaggems_wanted() is False
    assert flaggems_wanted({}) is True


def test_vendors_are_read_from_the_installed_distributions(monkeypatch):
    monkeypatch.setattr("fl_dispatch.discovery.installed_vendors", lambda: {"acme": None})
    assert load_config(PREFIX, {PREFIX + "DENY_VENDORS": "acme"}).policy.deny_vendors == {"acme"}
    with pytest.raises(ConfigError, match="no installed vendor is named 'other'"):
        load_config(PREFIX, {PREFIX + "DENY_VENDORS": "other"})


def test_every_setting_says_what_it_means():
    assert all(setting.meaning.endswith(".") for setting in SETTINGS)


@pytest.mark.parametrize(("white_list", "off"), [(None, False), ("rms_norm", False), ("none", True)])
def test_an_empty_white_list_is_off(load, white_list, off):
    assert load(**({} if white_list is None else {"OOT_WHITELIST": white_list})).is_off is off
