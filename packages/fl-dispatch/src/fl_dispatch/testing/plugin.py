# SPDX-License-Identifier: Apache-2.0
"""The pytest plug-in: options, the checks as items, and what is said at the end. Loaded by the entry point of pytest.

Runs that use no option of it and no ``vendor_conformance`` see five options in ``pytest --help`` and nothing else.
"""

from __future__ import annotations

from typing import Any

import pytest

OPTIONS = "fl_dispatch"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the kit."""
    group = parser.getgroup(OPTIONS, "fl-dispatch: conformance of a vendor's implementations")
    group.addoption(
        "--fl-vendor",
        metavar="NAME",
        action="append",
        default=[],
        help="check this vendor (an entry point of fl_dispatch.vendors, or flagos, reference); may be repeated. "
        "Without paths nothing else is collected",
    )
    group.addoption("--fl-operator", metavar="OP", action="append", default=[], help="only this one; may be repeated")
    group.addoption(
        "--fl-device", metavar="TYPE", help="for example cuda (default: this machine's accelerator, else cpu)"
    )
    group.addoption("--fl-seed", metavar="N", type=int, default=20, help="of the random inputs (default: 20)")
    group.addoption("--fl-report", metavar="FILE", help="write FILE (JSON) and the same as a page beside it (.html)")
    group.addoption(
        "--fl-compile-backend",
        metavar="NAME",
        help="of torch.compile (default: inductor on cuda, else aot_eager, which traces all and compiles nothing)",
    )
    group.addoption(
        "--fl-allow-unavailable",
        action="store_true",
        help="succeed also where no implementation can be used on this machine",
    )


def pytest_configure(config: pytest.Config) -> None:
    """With ``--fl-vendor`` and no paths, the vendor's checks are all there is to collect. A report has to be possible."""
    if config.getoption("--fl-report") and not hasattr(config, "workerinput"):
        from fl_dispatch.testing.report import check_writable

        check_writable(config.getoption("--fl-report"))
    if config.getoption("--fl-vendor") and config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = []


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the items of ``--fl-vendor``, before -k and -m choose."""
    names = config.getoption("--fl-vendor")
    if names:
        from fl_dispatch.testing import nodes

        for name in dict.fromkeys(names):
            items.extend(nodes.session_items(session, name))


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: Any) -> pytest.Collector | None:
    """``test_conformance = vendor_conformance("my_chip")`` becomes the checks."""
    asked = getattr(obj, "fl_conformance", None)
    if not isinstance(asked, tuple):
        return None
    from fl_dispatch.testing import nodes

    return nodes.ConformanceNode.from_parent(collector, name=name, asked=asked)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep what the checks found."""
    found = dict(report.user_properties).get("fl_dispatch")
    if isinstance(found, dict):
        from fl_dispatch.testing.summary import SUMMARY

        SUMMARY.see(report, found)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail where nothing could be run, and write the report."""
    from fl_dispatch.testing.summary import SUMMARY

    if SUMMARY.outcomes and not hasattr(session.config, "workerinput"):
        SUMMARY.finish(session)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was run, what could not be, and where the report is."""
    from fl_dispatch.testing.summary import SUMMARY

    for text, markup in SUMMARY.lines():
        terminalreporter.write_line(text, **markup)
    SUMMARY.clear()
