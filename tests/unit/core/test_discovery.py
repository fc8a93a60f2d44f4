# SPDX-License-Identifier: Apache-2.0
"""Vendors found through entry points. The distributions are folders with metadata on the path."""

from __future__ import annotations

import logging
import sys
import textwrap

import pytest

import fl_dispatch
from fl_dispatch import OpManager, OpRegistry, SelectionPolicy, installed_vendors
from fl_dispatch.discovery import discover

PREAMBLE = """
from fl_dispatch import Backend, BackendImplKind, OpImpl, Vendor

def impl(vendor, op="silu_and_mul", fn=None, **declared):
    def silu(obj, x):
        return vendor
    return OpImpl(op, f"vendor.{vendor}", BackendImplKind.VENDOR, fn or silu, vendor=vendor, **declared)
"""
GOOD = """
def register(registry):
    registry.register(impl("{name}"))
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a distribution with one module and its entry points; undone after the test."""
    installed = []

    def install(name, code=None, *, points=None, distribution=None, version="1.0"):
        distribution = distribution or f"{name}-kernels"
        folder = tmp_path / distribution
        module = f"{name}_{len(installed)}_fake_vendor"
        metadata = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        metadata.mkdir(parents=True)
        (folder / f"{module}.py").write_text(PREAMBLE + textwrap.dedent(code or GOOD.format(name=name)))
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        lines = [f"{point} = {module}:{target}" for point, target in (points or {name: "register"}).items()]
        (metadata / "entry_points.txt").write_text("\n".join(["[fl_dispatch.vendors]", *lines]) + "\n")
        monkeypatch.syspath_prepend(folder)
        installed.append(module)
        return module

    yield install
    for module in installed:
        sys.modules.pop(module, None)


def found(policy=None, registry=None):
    registry = registry or OpRegistry()
    records = discover(registry, policy or SelectionPolicy())
    return {record.name: record for record in records}, registry


def vendors_of(registry):
    return {impl.vendor for impls in registry.snapshot().values() for impl in impls} - {None}


def test_a_vendor_is_registered_with_its_source(install):
    install("acme", version="2.1")
    records, registry = found()
    record = records["acme"]
    assert (record.status, record.distribution, record.version) == ("registered", "acme-kernels", "2.1")
    assert (record.implementations, record.reason, record.detail) == (1, "", "")
    (one,) = [impl for impl in registry.get("silu_and_mul") if impl.vendor == "acme"]
    assert one.registered_by == "acme-kernels 2.1"


def test_the_built_in_backends_are_registered_through_the_same_door():
    _, registry = found()
    assert {i.impl_id for i in registry.get("rms_norm")} >= {"flagos", "reference"}
    assert all(i.registered_by == "fl-dispatch" for i in registry.get("rms_norm") if i.vendor is None)


def test_a_vendor_value_is_accepted(install):
    install("acme", GOOD.format(name="acme") + 'vendor = Vendor("acme", register)', points={"acme": "vendor"})
    records, _ = found()
    assert records["acme"].status == "registered"


def test_installed_vendors_imports_nothing(install):
    module = install("acme")
    assert installed_vendors()["acme"].value == f"{module}:register"
    assert module not in sys.modules


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (SelectionPolicy(deny_vendors={"acme"}), "vendor 'acme' is denied (deny_vendors); not imported"),
        (SelectionPolicy(allow_vendors={"other"}), "vendor 'acme' is not in allow_vendors; not imported"),
    ],
)
def test_a_vendor_that_may_not_be_used_is_not_imported(install, policy, reason):
    module = install("acme")
    install("other")
    records, registry = found(policy)
    assert (records["acme"].status, records["acme"].reason) == ("denied", reason)
    assert module not in sys.modules
    assert vendors_of(registry) == {"other"}


def test_a_denied_vendor_is_loaded_when_the_policy_lets_it(install, layer, x):
    module = install("acme")
    one = OpManager(policy=SelectionPolicy(deny_vendors={"acme"}), device_type="cpu")
    held = one.resolve_op("silu_and_mul")
    assert module not in sys.modules
    one.configure(policy=SelectionPolicy(prefer="vendor"))
    assert held(layer, x) == "acme"
    assert one.vendors[0].status == "registered"


def test_a_policy_change_imports_nothing_twice(install):
    install(
        "acme", GOOD.format(name="acme") + "import builtins\nbuiltins.fl_times = getattr(builtins, 'fl_times', 0) + 1"
    )
    one = OpManager(policy=SelectionPolicy(), device_type="cpu")
    before = one.registry.snapshot()
    one.configure(policy=SelectionPolicy(prefer="reference"))
    assert one.registry.snapshot() == before
    assert [record.status for record in one.vendors] == ["registered"]
    import builtins

    assert builtins.fl_times == 1
    del builtins.fl_times


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import no_such_sdk", "ModuleNotFoundError: No module named 'no_such_sdk'"),
        ("raise OSError('libacme.so: undefined symbol')", "OSError: libacme.so: undefined symbol"),
        ("import sys\nsys.exit(3)", "SystemExit: 3"),
        ("def register(registry):\n    raise RuntimeError('two\\nlines')", "RuntimeError: two"),
        ("register = 5", "is int, neither a register(registry) function nor a Vendor"),
        ("other = 5", "AttributeError: module"),
        ("def register(registry):\n    pass", "it registered no implementation"),
    ],
    ids=["import", "symbol", "exit", "register", "not callable", "no attribute", "nothing"],
)
def test_a_broken_vendor_is_recorded_and_the_others_work(install, code, reason, caplog):
    install("broken", code)
    install("acme")
    with caplog.at_level(logging.WARNING, logger="fl_dispatch"):
        records, registry = found()
    assert records["broken"].status == "broken"
    assert reason in records["broken"].reason
    assert "\n" not in records["broken"].reason
    assert vendors_of(registry) == {"acme"}
    (warning,) = caplog.records
    assert "vendor broken (broken-kernels 1.0) is broken: " in warning.getMessage()


def test_a_broken_import_is_recorded_with_its_traceback(install):
    module = install("broken", "import no_such_sdk")
    records, _ = found()
    assert f'{module}.py", line' in records["broken"].detail
    assert "import no_such_sdk" in records["broken"].detail


def test_an_interrupt_is_not_swallowed(install):
    install("acme", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        found()


def test_a_name_that_differs_from_the_vendor_values_is_an_error(install):
    install("acme", GOOD.format(name="acme") + 'vendor = Vendor("acme", register)', points={"acmee": "vendor"})
    records, registry = found()
    assert records["acmee"].status == "broken"
    assert records["acmee"].reason == (
        "the entry point is named 'acmee' but its Vendor value says 'acme'; name both alike"
    )
    assert vendors_of(registry) == set()


def test_another_interface_version_is_an_error_with_a_hint(install):
    install(
        "acme", GOOD.format(name="acme") + 'vendor = Vendor("acme", register, api_version=7)', points={"acme": "vendor"}
    )
    records, _ = found()
    assert records["acme"].status == "broken"
    assert records["acme"].reason == (
        f"acme-kernels 1.0 is built for version 7 of the vendor interface, fl-dispatch {fl_dispatch.__version__} takes "
        "version 1; install a newer fl-dispatch"
    )


def test_the_second_distribution_of_one_vendor_name_is_refused(install):
    install("acme", distribution="a-kernels")
    install("acme", distribution="b-kernels")
    registry = OpRegistry()
    records = discover(registry, SelectionPolicy())
    assert [(r.distribution, r.status) for r in records] == [("a-kernels", "registered"), ("b-kernels", "broken")]
    assert records[1].reason == "the vendor name 'acme' is already taken by a-kernels; uninstall one"
    again = discover(registry, SelectionPolicy(prefer="reference"), already=records)
    assert again == records


def test_a_vendor_cannot_register_for_another_name(install):
    install("acme", GOOD.format(name="other"))
    install("good")
    records, registry = found()
    assert records["acme"].status == "broken"
    assert "vendor is 'other' but the entry point is named 'acme'" in records["acme"].reason
    assert vendors_of(registry) == {"good"}


def test_a_vendor_cannot_register_a_reference(install):
    install(
        "acme",
        """
        def register(registry):
            registry.register(OpImpl("silu_and_mul", "mine", BackendImplKind.REFERENCE, lambda obj, x: x))
        """,
    )
    records, _ = found()
    assert "vendor is None but the entry point is named 'acme'" in records["acme"].reason


def test_a_wrong_implementation_is_refused_alone(install):
    install(
        "acme",
        """
        def register(registry):
            registry.register_many([
                impl("acme", "rms_norm", fn=lambda obj, hidden, residual=None: hidden),
                impl("acme"),
            ])
        """,
    )
    records, registry = found()
    assert (records["acme"].status, records["acme"].implementations) == ("partial", 1)
    assert "parameter 2 is named 'hidden', not 'x'" in records["acme"].reason
    assert vendors_of(registry) == {"acme"}


def test_a_method_the_vendor_did_not_write_is_left_out_alone(install, layer, x):
    install(
        "acme",
        """
        import functools

        class Acme(Backend):
            name = "acme"
            def is_available(self):
                return True
            def silu_and_mul(self, obj, x):
                return "acme"

        def bind(fn, probe):
            @functools.wraps(fn)
            def wrapper(*args, **kwargs):
                return fn(*args, **kwargs)
            wrapper._is_available = probe
            return wrapper

        def register(registry):
            backend = Acme()
            registry.register_many([
                impl("acme", "rms_norm", fn=bind(backend.rms_norm, backend.is_available)),
                impl("acme", "silu_and_mul", fn=bind(backend.silu_and_mul, backend.is_available)),
            ])
        """,
    )
    one = OpManager(policy=SelectionPolicy(prefer="vendor"), device_type="cpu")
    assert one.call_op("silu_and_mul", layer, x) == "acme"
    (record,) = one.vendors
    assert record.status == "partial"
    assert "OpImpl(rms_norm, vendor.acme): Acme has no method rms_norm(); implement it" in record.reason


def test_what_was_registered_before_a_crash_stays(install):
    install(
        "acme",
        """
        def register(registry):
            registry.register(impl("acme"))
            raise RuntimeError("half way")
        """,
    )
    records, registry = found()
    assert (records["acme"].status, records["acme"].implementations) == ("partial", 1)
    assert records["acme"].reason == "RuntimeError: half way"
    assert vendors_of(registry) == {"acme"}


def test_an_implementation_id_of_a_denied_vendor_is_not_called_a_misspelling(install, layer, x):
    install("acme")
    policy = SelectionPolicy(prefer="impl:vendor.acme", deny_vendors={"acme"})
    assert OpManager(policy=policy, device_type="cpu").bind("silu_and_mul", layer).impl.vendor is None


def test_an_implementation_id_that_nothing_has_is_an_error_on_first_use(install, layer):
    install("acme")
    from fl_dispatch import ConfigError

    one = OpManager(policy=SelectionPolicy(prefer="impl:vendor.acne"), device_type="cpu")
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"token 'impl:vendor.acne': .* did you mean 'vendor.acme'\?"):
            one.bind("silu_and_mul", layer)


def test_records_have_a_plain_form(install):
    install("acme")
    records, _ = found()
    assert records["acme"].as_dict()["status"] == "registered"
