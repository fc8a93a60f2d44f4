# SPDX-License-Identifier: Apache-2.0
"""``FailureLedger``: what failed lately, what was demoted for it, and which calls the chosen one did not serve."""

from __future__ import annotations

import threading

from fl_dispatch.types import OpImpl

#: Failures in a row, over all sites, after which an implementation is demoted for one operator and dtype.
DEMOTE_AFTER = 3

#: Reasons kept apart for one implementation of one operator.
DISTINCT_REASONS = 9

# Operator, implementation, dtype.
Key = tuple[str, str, str]


class FailureLedger:
    """Which implementations failed lately and which were demoted; keyed by operator, implementation and dtype."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streak: dict[Key, int] = {}
        self._demoted: dict[Key, str] = {}
        self._notes: dict[Key, int] = {}

    def is_watched(self, impl: OpImpl) -> bool:
        """Whether its next success ends a streak of failures."""
        return any(key[:2] == (impl.op_name, impl.impl_id) for key in tuple(self._streak))

    def demoted_dtypes(self, impl: OpImpl) -> frozenset[str]:
        """The dtypes it is passed over for since it failed repeatedly."""
        return frozenset(k[2] for k in tuple(self._demoted) if k[:2] == (impl.op_name, impl.impl_id))

    def demotions(self) -> list[dict[str, str]]:
        """Every demotion in force, for reports."""
        with self._lock:
            demoted = sorted(self._demoted.items())
        return [
            {"operator": op, "impl_id": impl_id, "dtype": dtype, "reason": reason}
            for (op, impl_id, dtype), reason in demoted
        ]

    def failed(self, impl: OpImpl, dtype: str, error: BaseException) -> bool:
        """Count a failure; True when this one demotes the implementation."""
        key = (impl.op_name, impl.impl_id, dtype)
        with self._lock:
            if key in self._demoted:
                return False
            self._streak[key] = self._streak.get(key, 0) + 1
            if self._streak[key] < DEMOTE_AFTER:
                return False
            del self._streak[key]
            self._demoted[key] = f"failed {DEMOTE_AFTER} times in a row, last with {type(error).__name__}: {error}"
            return True

    def succeeded(self, impl: OpImpl, dtype: str | None) -> bool:
        """End the streak of one dtype; False when there was none."""
        with self._lock:
            return self._streak.pop((impl.op_name, impl.impl_id, dtype or ""), None) is not None

    def noted(self) -> list[dict[str, object]]:
        """Calls that a chosen implementation did not serve, by reason."""
        with self._lock:
            notes = sorted(self._notes.items())
        return [
            {"operator": op, "impl_id": impl_id, "reason": reason, "calls": count}
            for (op, impl_id, reason), count in notes
        ]

    def note(self, impl: OpImpl, reason: str) -> bool:
        """Count a reason; True the first time, when it is worth a log line.

        A reason may hold what differs from call to call (a number of tokens): from the tenth one on they are one.
        """
        key = (impl.op_name, impl.impl_id, reason)
        with self._lock:
            if key not in self._notes and sum(known[:2] == key[:2] for known in self._notes) >= DISTINCT_REASONS:
                key = (*key[:2], "other reasons")
            self._notes[key] = self._notes.get(key, 0) + 1
            return self._notes[key] == 1 and key[2] != "other reasons"

    def reset(self) -> tuple[dict[Key, int], dict[Key, str]]:
        """Forget streaks and demotions; returns them for ``restore``."""
        with self._lock:
            before = (self._streak, self._demoted)
            self._streak, self._demoted = {}, {}
        return before

    def restore(self, before: tuple[dict[Key, int], dict[Key, str]]) -> None:
        """Undo ``reset``."""
        with self._lock:
            self._streak, self._demoted = before
