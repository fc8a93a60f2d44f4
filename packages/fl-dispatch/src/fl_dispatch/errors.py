# SPDX-License-Identifier: Apache-2.0
"""Every error a user of fl-dispatch can meet. Each message says what failed, what the choices were, and one hint."""

from __future__ import annotations

from collections.abc import Iterable


class FLDispatchError(Exception):
    """Base of all errors raised by fl-dispatch itself."""


class ConfigError(FLDispatchError, ValueError):
    """A setting in the environment, a file or an argument is unknown or malformed."""


class RegistrationError(FLDispatchError, ValueError):
    """An implementation, operator or vendor could not be registered."""


class UnknownOperatorError(FLDispatchError, LookupError):
    """No operator of that name exists."""


class SelectionError(FLDispatchError, RuntimeError):
    """No implementation may run under the policy in force."""


class FrozenSelectionError(FLDispatchError, RuntimeError):
    """The selection was changed after a graph was captured or compiled with it."""


class OpArgumentError(FLDispatchError, TypeError):
    """The caller passed arguments outside the operator's standard signature."""


class OpExecutionError(FLDispatchError, RuntimeError):
    """An implementation failed while running and no other one was allowed to take over."""


class SeamError(FLDispatchError, RuntimeError):
    """The place in a framework where operators are exchanged is not where it was tested, or not in effect."""


class NotSupported(Exception):
    """Raised by an implementation, before any launch and any write, to pass a call on to the next candidate."""


def closest(word: str, choices: Iterable[str]) -> str | None:
    """The choice that ``word`` is most likely a misspelling of; None when nothing is close."""
    import difflib

    folded = {name.casefold(): name for name in sorted(choices)}  # a wrong case is the smallest mistake
    close = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    return folded[close[0]] if close else None


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return a hint such as ``did you mean 'rms_norm'?`` or the list of choices when nothing is close."""
    names = sorted(choices)
    close = closest(word, names)
    if close is not None:
        return f"did you mean {close!r}?"
    return "known: " + (", ".join(names) if names else "none")
