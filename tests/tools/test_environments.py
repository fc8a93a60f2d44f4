# SPDX-License-Identifier: Apache-2.0
"""Environments: reused when up to date, rebuilt or completed when not. No virtual environment is made here."""

from __future__ import annotations

from pathlib import Path

import pytest

from fltool import environments
from fltool.environments import ENVIRONMENTS, Environment, ensure
from fltool.process import ToolError
from fltool.stamps import Stamp


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """A repository in a temporary folder, and the names of the build steps that were carried out in it."""
    done: list[str] = []
    lists, packages = tmp_path / "requirements", tmp_path / "packages"
    lists.mkdir()
    (lists / "test.txt").write_text("pytest==1\n")
    (lists / "x.txt").write_text("torch==1\n")
    (packages / "one" / "src").mkdir(parents=True)
    (packages / "one" / "pyproject.toml").write_text("[project]\n")
    (packages / "empty").mkdir()

    def create(env: Environment) -> None:
        done.append("create")
        env.python.parent.mkdir(parents=True, exist_ok=True)
        env.python.touch()
        Stamp(env.folder / "fl-stamp.json").path.unlink(missing_ok=True)

    monkeypatch.setattr(environments, "ENVS", tmp_path / ".envs")
    monkeypatch.setattr(environments, "REQUIREMENTS", lists)
    monkeypatch.setattr(environments, "PACKAGES", packages)
    monkeypatch.setattr(environments, "_create", create)
    monkeypatch.setattr(environments, "_install_requirements", lambda env: done.append("requirements"))
    monkeypatch.setattr(environments, "_install_extras", lambda env: done.append("extras"))
    monkeypatch.setattr(environments, "_install_packages", lambda env, wheels: done.append("packages"))
    return done


ENV = Environment("x", "pass")


def test_a_new_environment_is_built_and_then_reused(steps: list[str]) -> None:
    ensure(ENV)
    assert steps == ["create", "requirements", "extras", "packages"]
    ensure(ENV)
    assert steps == ["create", "requirements", "extras", "packages"]


def test_a_changed_list_rebuilds(steps: list[str], tmp_path: Path) -> None:
    ensure(ENV)
    steps.clear()
    (tmp_path / "requirements" / "x.txt").write_text("torch==2\n")
    ensure(ENV)
    assert steps == ["create", "requirements", "extras", "packages"]


def test_recreate_rebuilds(steps: list[str]) -> None:
    ensure(ENV)
    steps.clear()
    ensure(ENV, recreate=True)
    assert steps == ["create", "requirements", "extras", "packages"]


def test_an_interrupted_build_goes_on_in_the_same_folder(steps: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(env: Environment) -> None:
        raise ToolError("no network")

    with monkeypatch.context() as patch:
        patch.setattr(environments, "_install_requirements", fails)
        with pytest.raises(ToolError):
            ensure(ENV)
    ensure(ENV)
    assert steps == ["create", "requirements", "extras", "packages"]


def test_changed_package_metadata_reinstalls_the_packages_only(steps: list[str], tmp_path: Path) -> None:
    ensure(ENV)
    steps.clear()
    (tmp_path / "packages" / "one" / "pyproject.toml").write_text("[project]\nname = 'one'\n")
    ensure(ENV)
    assert steps == ["packages"]


def test_changed_source_is_seen_by_wheels_and_needs_nothing_in_editable_form(steps: list[str], tmp_path: Path) -> None:
    ensure(ENV)
    steps.clear()
    (tmp_path / "packages" / "one" / "src" / "one.py").touch()
    ensure(ENV)
    assert steps == []
    ensure(ENV, wheels=True)
    (tmp_path / "packages" / "one" / "src" / "two.py").touch()
    ensure(ENV, wheels=True)
    assert steps == ["packages", "packages"]


def test_a_folder_without_code_is_no_package(steps: list[str]) -> None:
    assert [folder.name for folder in ENV.packages()] == ["one"]


def test_an_excluded_package_is_left_out(steps: list[str]) -> None:
    assert Environment("x", "pass", excluded_packages=frozenset({"one"})).packages() == []


def test_an_adapter_is_not_installed_beside_the_other_engine() -> None:
    assert "vllm-fl-adapter" in ENVIRONMENTS["sglang-0.5.23"].excluded_packages
    assert "sglang-fl" in ENVIRONMENTS["vllm-0.32"].excluded_packages


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ToolError, match=r"unknown environment 'sglang'; there are: dev, sglang-0\.5\.23"):
        environments.named("sglang")
