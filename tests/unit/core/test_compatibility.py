# SPDX-License-Identifier: Apache-2.0
"""Vendor wheels that were built for another core are refused by name and version, before or after they are imported."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

import fl_dispatch
from fl_dispatch import DevicePlatform, SelectionPolicy, Vendor, device_platforms, platforms
from fl_dispatch.compatibility import load_vendor
from fl_dispatch.errors import RegistrationError

CORE = fl_dispatch.__version__


def register(registry):
    """What a bare function of the first interface is."""


def point(loaded, *requires: str, name: str = "acme") -> EntryPoint:
    """An entry point of acme-kernels 2.0 with these requirements; an exception is raised when it is imported."""

    class Point(EntryPoint):
        def load(self):
            if isinstance(loaded, Exception):
                raise loaded
            return loaded

    found = Point(name, "acme:vendor", "fl_dispatch.vendors")
    vars(found)["dist"] = SimpleNamespace(name="acme-kernels", version="2.0", requires=list(requires))
    return found


@pytest.mark.parametrize("requirement", ["fl-dispatch>=9,<10", "fl_dispatch==0.0.1", "FL-Dispatch>9"])
def test_a_requirement_that_excludes_this_core_refuses_before_the_import(requirement):
    with pytest.raises(RegistrationError) as error:
        load_vendor(point(ImportError("it was imported"), "torch>=2", requirement))
    said = str(error.value)
    assert said.startswith("acme-kernels 2.0 is built for fl-dispatch ")
    assert f"this is fl-dispatch {CORE}" in said
    assert said.endswith("pip install --upgrade acme-kernels fl-dispatch")


@pytest.mark.parametrize(
    "requirement",
    [
        f"fl-dispatch>={CORE}",
        "fl-dispatch",
        "fl-dispatch>=9; python_version < '3'",
        "fl-dispatch-extras>=9",
        "not a requirement !",
    ],
)
def test_every_other_requirement_lets_it_in(requirement):
    assert load_vendor(point(register, requirement)).register is register


def test_a_development_version_of_the_core_counts_as_the_release_it_leads_to(monkeypatch):
    monkeypatch.setattr(fl_dispatch, "__version__", "9.0.dev3+local")
    assert load_vendor(point(register, "fl-dispatch>=9,<10")).name == "acme"


def test_without_packaging_the_version_of_the_interface_is_checked_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "packaging.requirements", None)
    assert load_vendor(point(register, "fl-dispatch>=9")).api_version == 1


def test_a_bare_function_is_version_1_of_the_interface():
    assert load_vendor(point(register)) == Vendor("acme", register, api_version=1)


@pytest.mark.parametrize(
    ("version", "hint"),
    [
        (2, "install a newer fl-dispatch"),
        (0, "api_version is an int, 1 or more"),
        ("1.0", "api_version is an int, 1 or more"),
        (True, "api_version is an int, 1 or more"),
    ],
)
def test_another_version_of_the_interface_names_both_versions(version, hint):
    with pytest.raises(RegistrationError) as error:
        load_vendor(point(Vendor("acme", register, api_version=version)))
    assert str(error.value) == (
        f"acme-kernels 2.0 is built for version {version!r} of the vendor interface, fl-dispatch {CORE} takes version 1; "
        + hint
    )


def test_an_interface_that_is_no_longer_taken_asks_for_a_newer_vendor(monkeypatch):
    monkeypatch.setattr("fl_dispatch.compatibility.SUPPORTED_API_VERSIONS", (2, 3))
    with pytest.raises(RegistrationError, match="takes version 2 and 3; install a newer acme-kernels"):
        load_vendor(point(register and Vendor("acme", register)))


FACTS = DevicePlatform("acme", lambda: True, "accl")


@pytest.mark.parametrize(
    ("loaded", "reason"),
    [
        (Vendor("acme", register, platform=FACTS), ""),
        (Vendor("acme", register, platform=DevicePlatform("acme", lambda: False, "accl")), "its device is not here"),
        (Vendor("acme", register, platform=DevicePlatform("acme", lambda: "no /dev/acme", "accl")), "no /dev/acme"),
        (Vendor("acme", register, platform=DevicePlatform("acme", lambda: 1 // 0, "accl")), "ZeroDivisionError: "),
        (Vendor("acme", register), "gives no facts about a device"),
        (register, "gives no facts about a device"),
        (OSError("libacme.so: cannot open"), "OSError: libacme.so: cannot open"),
        (Vendor("acme", register, api_version=2, platform=FACTS), "acme-kernels 2.0 is built for version 2"),
    ],
)
def test_facts_about_devices_come_with_the_reason_why_they_are_not_usable(monkeypatch, loaded, reason):
    monkeypatch.setattr(platforms, "installed_vendors", lambda: {"acme": point(loaded)})
    (record,) = device_platforms(SelectionPolicy())
    assert record.reason.startswith(reason)
    assert bool(record.reason) == bool(reason)
    assert record.usable == (reason == "")
    assert (record.vendor, record.distribution, record.version) == ("acme", "acme-kernels", "2.0")


def test_a_denied_vendor_is_not_imported_for_its_facts(monkeypatch):
    monkeypatch.setattr(platforms, "installed_vendors", lambda: {"acme": point(ImportError("it was imported"))})
    (record,) = device_platforms(SelectionPolicy(deny_vendors={"acme"}))
    assert record.platform is None
    assert record.reason.endswith("; not imported")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"device_type": ""}, "device_type must be a non-empty string"),
        ({"distributed_backend": None}, "distributed_backend must be a non-empty string, not None"),
        ({"present": True}, "present must be a function, not True"),
        ({"setup": "acme.setup"}, "setup must be a function or None"),
        ({"classes": {"vllm.worker": "Worker"}}, "classes['vllm.worker'] must be a dotted name, not 'Worker'"),
    ],
)
def test_facts_that_cannot_be_are_refused_where_they_are_written(fields, says):
    arguments = {"device_type": "acme", "present": lambda: True, "distributed_backend": "accl", **fields}
    with pytest.raises(TypeError) as error:
        DevicePlatform(**arguments)
    assert says in str(error.value)
