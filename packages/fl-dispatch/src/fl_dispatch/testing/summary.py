# SPDX-License-Identifier: Apache-2.0
"""What a run of the kit found as a whole: no green where nothing was run, and the report."""

from __future__ import annotations

from typing import Any

import pytest


class Summary:
    """Collects the outcome of every check of one pytest session."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything, for another session of the process."""
        self.outcomes: dict[str, dict[str, Any]] = {}
        self._lines: list[tuple[str, dict[str, bool]]] = []

    def see(self, report: pytest.TestReport, found: dict[str, Any]) -> None:
        """One phase of one item."""
        known = self.outcomes.get(report.nodeid, {})
        outcome = report.outcome
        if known.get("outcome") == "failed" or (report.when != "call" and outcome == "passed"):
            return
        seconds = round(report.duration, 4)
        self.outcomes[report.nodeid] = {**found, "outcome": outcome, "seconds": seconds, "node": report.nodeid}
        if outcome == "failed":
            self.outcomes[report.nodeid]["message"] = report.longreprtext

    def finish(self, session: pytest.Session) -> None:
        """At the end of the session: decide whether anything was run at all, write the report."""
        config = session.config
        for vendor in dict.fromkeys(outcome["vendor"] for outcome in self.outcomes.values()):
            if not self._anything_ran(vendor) and not config.getoption("--fl-allow-unavailable"):
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        target = config.getoption("--fl-report")
        if target:
            from fl_dispatch.testing.report import write

            try:
                written = write(target, list(self.outcomes.values()), config)
            except OSError as error:  # the disk is full, the folder is gone: what was found is still said
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
                self._say(f"fl-dispatch: no report: {target} cannot be written: {error}", red=True)
            else:
                self._say(f"fl-dispatch: report in {' and '.join(map(str, written))}")

    def _anything_ran(self, vendor: str) -> bool:
        """False, and said with the reasons, where every implementation of a vendor that was to be checked is unavailable."""
        own = [
            outcome for outcome in self.outcomes.values() if outcome["vendor"] == vendor and outcome["implementation"]
        ]
        reasons = {
            f"{outcome['operator']} {outcome['implementation']}: {outcome['unavailable']}"
            for outcome in own
            if "unavailable" in outcome
        }
        if not reasons or any(outcome["outcome"] != "skipped" for outcome in own):
            return True
        self._say(f"fl-dispatch: nothing was checked of {vendor}: no implementation can be used here", red=True)
        for reason in sorted(reasons):
            self._say(f"  {reason}", red=True)
        self._say("  hint: run on a machine with the device; --fl-allow-unavailable lets such a run succeed", red=True)
        return False

    def lines(self) -> list[tuple[str, dict[str, bool]]]:
        """What to print at the end, with its markup."""
        return self._lines

    def _say(self, text: str, **markup: bool) -> None:
        self._lines.append((text, markup))


SUMMARY = Summary()
