# SPDX-License-Identifier: Apache-2.0
"""Which prefix counts when none is asked for."""

from __future__ import annotations

import pytest

from fl_dispatch import ConfigError, adapters


@pytest.fixture
def installed(monkeypatch):
    """``installed("sglang-fl")``: exactly these adapters are installed."""

    def installed(*names: str) -> None:
        prefixes = {prefix: name for prefix, name in adapters.ADAPTERS.items() if name in names}
        monkeypatch.setattr(adapters, "adapter_of", prefixes.get)

    return installed


def test_without_an_adapter_it_is_the_cores_own(installed) -> None:
    installed()
    assert adapters.prefix_in_use(environ={}).prefix == "FL_DISPATCH_"


def test_it_is_that_of_the_installed_adapter_even_if_others_are_set(installed) -> None:
    installed("sglang-fl")
    choice = adapters.prefix_in_use(environ={"FL_DISPATCH_PREFER": "vendor"})
    assert choice == adapters.PrefixChoice("SGLANG_FL_", "sglang-fl is installed")


def test_of_two_adapters_it_is_the_one_with_variables(installed) -> None:
    installed("sglang-fl", "vllm-fl-adapter")
    assert adapters.prefix_in_use(environ={"VLLM_FL_PREFER": "vendor"}).prefix == "VLLM_FL_"


def test_of_two_adapters_without_a_difference_it_is_neither(installed) -> None:
    installed("sglang-fl", "vllm-fl-adapter")
    choice = adapters.prefix_in_use(environ={"SGLANG_FL_STRICT": " "})
    expected = "sglang-fl, vllm-fl-adapter are installed: pick one with --prefix"
    assert choice == adapters.PrefixChoice("FL_DISPATCH_", expected)


def test_an_installed_distribution_is_found_by_its_metadata(install) -> None:
    assert adapters.installed_version("an-adapter") is None
    install("an-adapter", "", {"fl_dispatch.config": {"OTHER_FL_": "an_adapter:arguments"}}, version="3.1")
    assert adapters.installed_version("an-adapter") == "3.1"
    assert adapters.adapter_of("OTHER_FL_") == "an-adapter"
    assert "OTHER_FL_" in adapters.known_prefixes()


def test_an_unknown_prefix_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'VLLM_FL_'"):
        adapters.prefix_in_use("VLM_FL_")
