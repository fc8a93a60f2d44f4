# SPDX-License-Identifier: Apache-2.0
"""The kit's pytest items: one check each, and the message of one that failed."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest._code.code import TerminalRepr  # what Item.repr_failure may return, which has no public name
from _pytest._io import TerminalWriter

from fl_dispatch.errors import FLDispatchError
from fl_dispatch.testing import plan
from fl_dispatch.testing.case import Case, CheckFailed, NotApplicable
from fl_dispatch.testing.vendors import VendorUnderTest, find

_DEFAULTS = {"--fl-seed": 20, "--fl-device": None, "--fl-compile-backend": None}


class _Failure(TerminalRepr):
    """A message as it is; its problem is what pytest's short summary shows."""

    def __init__(self, text: str, problem: str) -> None:
        self.text = text
        self.reprcrash = SimpleNamespace(message=problem)

    def toterminal(self, tw: TerminalWriter) -> None:
        """What pytest asks for."""
        tw.line(self.text)


class ConformanceItem(pytest.Item):
    """One check."""

    def __init__(self, *, case: Case, vendor: VendorUnderTest, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.case = case
        self.vendor = vendor
        self.found: dict[str, Any] = {
            "vendor": vendor.name,
            "source": vendor.source,
            "operator": case.target.spec.name if case.target else None,
            "implementation": case.target.impl.impl_id if case.target else None,
            "device": case.target.device if case.target else None,
            "check": case.check,
            "variant": case.variant,
            "meaning": case.meaning,
            "name": case.name,
        }
        self.user_properties.append(("fl_dispatch", self.found))

    def runtest(self) -> None:
        """Carry the check out."""
        import torch

        from fl_dispatch.testing import lost
        from fl_dispatch.testing.state import TorchState

        target = self.case.target
        unavailable = None if target is None else target.unavailable or lost.reason(target.device)
        if target is not None and unavailable is not None:
            self.found.update(unavailable=unavailable)
            pytest.skip(f"{target.impl.impl_id} cannot be used here: {unavailable}")
        # More threads than the small inputs are worth only wait for each other.
        threads, state = torch.get_num_threads(), TorchState.now()
        torch.set_num_threads(1)
        try:
            with torch.no_grad():
                self.found.update(figures=dict(self.case.run()))
        except NotApplicable as reason:
            self.found.update(not_applicable=str(reason))
            pytest.skip(f"{self.case.name}: {reason}")
        except Exception:
            if target is not None:
                lost.after_failure(target.device, self.case.name)
            raise
        finally:
            torch.set_num_threads(threads)
            state.restore()  # what a vendor changes is for the check that looks at it, not for later ones

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The message of a failed check in the words of the kit; anything else as pytest shows it."""
        error = excinfo.value
        if not isinstance(error, CheckFailed):
            return super().repr_failure(excinfo, style)
        return _Failure(self._message(error), error.problem)

    def _message(self, error: CheckFailed) -> str:
        target = self.case.target
        lines = [("check", f"{self.case.check}: {self.case.meaning}"), ("problem", error.problem)]
        if target is not None:
            lines = [
                ("operator", target.spec.name),
                ("implementation", f"{target.impl.impl_id} ({self.vendor.source}) on {target.device}"),
                *lines,
            ]
        else:
            lines.insert(0, ("vendor", self.vendor.name))
        if error.input is not None:
            lines.append(("input", error.input))
        lines += list(error.details.items())
        if error.__cause__ is not None and "trace" not in error.details:
            lines.append(("trace", "".join(traceback.format_exception(error.__cause__)).rstrip()))
        lines.append(("reproduce", self._reproduce()))
        self.found.update(problem=error.problem, input=error.input, details=error.details, reproduce=self._reproduce())
        return "\n".join(f"{name + ':':<16}" + str(text).replace("\n", "\n" + " " * 16) for name, text in lines)

    def _reproduce(self) -> str:
        words = ["pytest", "--fl-vendor", self.vendor.name]
        for option, default in _DEFAULTS.items():
            value = self.config.getoption(option)
            if value != default:
                words += [option, str(value)]
        if self.case.target is not None:  # -k alone would find gemma_rms_norm for rms_norm as well
            words += ["--fl-operator", self.case.target.spec.name]
        return " ".join([*words, "-k", self.case.name])

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """What pytest calls the item in headlines. Not its name alone, in which pytest would take the dots for classes."""
        target = self.case.target
        return self.path, None, f"{self.name} on {target.device}" if target else f"{self.name} of the vendor"


class ConformanceNode(pytest.Collector):
    """What ``vendor_conformance`` stands for in a test file."""

    def __init__(self, *, asked: tuple[str, tuple[str, ...], str | None], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.asked = asked

    def collect(self) -> Iterator[pytest.Item]:
        """The vendor's checks."""
        vendor, operators, device = self.asked
        found = _find(self.config, vendor, operators, device)
        for case in plan.cases(found):
            yield ConformanceItem.from_parent(self, name=case.name, case=case, vendor=found)


def session_items(session: pytest.Session, vendor: str) -> Iterator[pytest.Item]:
    """The items of ``--fl-vendor``, which belong to no file."""
    found = _find(session.config, vendor, (), None)
    for case in plan.cases(found):
        nodeid = f"fl-dispatch::{case.name}"
        yield ConformanceItem.from_parent(session, name=case.name, nodeid=nodeid, case=case, vendor=found)


def _find(config: pytest.Config, vendor: str, operators: tuple[str, ...], device: str | None) -> VendorUnderTest:
    try:
        return _find_once(
            vendor,
            operators or tuple(config.getoption("--fl-operator")),
            device or config.getoption("--fl-device"),
            config.getoption("--fl-seed"),
            config.getoption("--fl-compile-backend"),
        )
    except FLDispatchError as error:
        raise pytest.UsageError(str(error)) from error


@functools.cache
def _find_once(
    vendor: str, operators: tuple[str, ...], device: str | None, seed: int, compile_backend: str | None
) -> VendorUnderTest:
    return find(vendor, device=device, operators=operators, seed=seed, compile_backend=compile_backend)
