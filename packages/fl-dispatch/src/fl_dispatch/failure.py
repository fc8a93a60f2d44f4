# SPDX-License-Identifier: Apache-2.0
"""What happens when an implementation cannot or did not serve a call. The same rules on the first and the thousandth call.

Not able (a declared limit, ``NotSupported``) is no error: the next candidate runs, the reason is kept. A failure is passed on
only when the implementation declares that it mutates nothing, nothing is being captured or traced, the policy is not strict,
and the error is neither the caller's mistake, nor out of memory, nor a lost device.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fl_dispatch import facts
from fl_dispatch.errors import FLDispatchError, NotSupported, OpArgumentError, OpExecutionError, SelectionError
from fl_dispatch.types import OpImpl

if TYPE_CHECKING:
    from fl_dispatch.site import Site

logger = logging.getLogger("fl_dispatch")

#: Failures in a row, over all sites, after which an implementation is demoted for one operator and dtype.
DEMOTE_AFTER = 3

_LOST_DEVICE = ("device-side assert", "illegal memory access", "launch failure", "device lost", "ecc error", "aicore")

Key = tuple[str, str, str]


class FailureLedger:
    """Which implementations failed lately and which were demoted; keyed by operator, implementation and dtype."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streak: dict[Key, int] = {}
        self._demoted: dict[Key, str] = {}
        self._notes: dict[Key, int] = {}

    def is_watched(self, impl: OpImpl) -> bool:
        return any(key[:2] == (impl.op_name, impl.impl_id) for key in self._streak)

    def demoted_dtypes(self, impl: OpImpl) -> frozenset[str]:
        return frozenset(k[2] for k in self._demoted if k[:2] == (impl.op_name, impl.impl_id))

    def demotions(self) -> list[dict[str, str]]:
        return [
            {"operator": op, "impl_id": impl_id, "dtype": dtype, "reason": reason}
            for (op, impl_id, dtype), reason in sorted(self._demoted.items())
        ]

    def failed(self, impl: OpImpl, dtype: str, error: BaseException) -> bool:
        """Count a failure; True when this one demotes the implementation."""
        key = (impl.op_name, impl.impl_id, dtype)
        with self._lock:
            self._streak[key] = self._streak.get(key, 0) + 1
            if self._streak[key] < DEMOTE_AFTER or key in self._demoted:
                return False
            del self._streak[key]
            self._demoted[key] = f"failed {DEMOTE_AFTER} times in a row, last with {type(error).__name__}: {error}"
            return True

    def succeeded(self, impl: OpImpl) -> None:
        with self._lock:
            for key in [key for key in self._streak if key[:2] == (impl.op_name, impl.impl_id)]:
                del self._streak[key]

    def noted(self) -> list[dict[str, object]]:
        """Calls that a chosen implementation did not serve, by reason."""
        return [
            {"operator": op, "impl_id": impl_id, "reason": reason, "calls": count}
            for (op, impl_id, reason), count in sorted(self._notes.items())
        ]

    def note(self, impl: OpImpl, reason: str) -> bool:
        """Count a reason; True the first time, when it is worth a log line."""
        key = (impl.op_name, impl.impl_id, reason)
        with self._lock:
            self._notes[key] = self._notes.get(key, 0) + 1
            return self._notes[key] == 1

    def reset(self) -> None:
        with self._lock:
            self._streak.clear()
            self._demoted.clear()


def recover(site: Site, error: Exception, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Called from the except branch of a site. Returns another candidate's result, or raises."""
    if isinstance(error, FLDispatchError) or getattr(error, "_fl_dispatch_judged", False):
        raise error
    impl = site.impl
    if impl is None:
        raise error
    _judge(site, impl, error, args, kwargs)
    return _run_rest(site, impl, f"raised {type(error).__name__}: {error}", error, args, kwargs)


def pass_on(site: Site, impl: OpImpl, reason: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A declared limit refuses this call before the kernel: let the next candidate serve it."""
    return _run_rest(site, impl, reason, None, args, kwargs)


def _run_rest(
    site: Site, failed: OpImpl, reason: str, error: Exception | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    selection = site.selection
    assert selection is not None  # a site that ran has decided
    usable = selection.usable
    verdicts = [(failed, reason)]
    for impl in usable[usable.index(failed) + 1 :]:
        # A refusal inside a trace is a guardable branch, not a failure: nothing of it needs logging.
        why_not = facts.layer_verdict(impl, args[0]) or facts.call_verdict(impl, args, kwargs)
        if why_not is None:
            try:
                result = impl.fn(*args, **kwargs)
            except Exception as next_error:  # noqa: BLE001  (judged at once: raised again unless it may be passed on)
                _judge(site, impl, next_error, args, kwargs)
                why_not, error = f"raised {type(next_error).__name__}: {next_error}", next_error
            else:
                site.fallbacks[impl.impl_id] = site.fallbacks.get(impl.impl_id, 0) + 1
                if site.manager.failures.note(failed, reason):
                    logger.warning(
                        "operator %s: %s did not serve a call (%s); %s did. Further such calls are counted, not logged.",
                        site.op_name, failed.impl_id, reason, impl.impl_id,
                    )  # fmt: skip
                return result
        verdicts.append((impl, why_not))
    lines = "".join(f"\n   x {impl.impl_id:<24} {why}" for impl, why in verdicts)
    what = "strict, and the chosen implementation" if selection.policy.strict else "no implementation"
    kind = SelectionError if error is None else OpExecutionError
    hint = "turn strict off, or widen the order" if selection.policy.strict else "`fl-dispatch explain` shows every limit"
    ability = "is not able to serve it" if selection.policy.strict else "is able to serve it"
    raise kind(
        f"operator {site.op_name!r} called with ({facts.describe_arguments(args, kwargs)}): {what} {ability}{lines}\n"
        f"  hint: {hint}"
    ) from error


def _judge(site: Site, impl: OpImpl, error: Exception, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise unless the failure of ``impl`` may be passed on to the next candidate."""
    if isinstance(error, FLDispatchError):
        raise error
    selection = site.selection
    strict = selection is not None and selection.policy.strict
    where = f"operator {site.op_name!r}, implementation {impl.impl_id!r}"
    call = facts.describe_arguments(args, kwargs)
    if _is_out_of_memory(error):
        # Engines catch this type and shrink their batch: keep it, and say where it happened.
        error.add_note(f"fl-dispatch: raised by {where} called with ({call})")
        error._fl_dispatch_judged = True  # type: ignore[attr-defined]
        raise error
    mistake = _callers_mistake(site, args, kwargs)
    if mistake is not None:
        raise OpArgumentError(
            f"operator {site.op_name!r} called with ({call}): {mistake}\n"
            f"  hint: the standard signature is {site.op_name}{site.manager.registry.spec(site.op_name).signature}"
        ) from error
    not_supported = isinstance(error, NotSupported)
    stop = None
    if strict:
        stop = "strict forbids a fallback"
    elif facts.tracing_or_capturing():
        stop = "a trace or graph capture is under way, where nothing can be retried"
    elif any(mark in str(error).lower() for mark in _LOST_DEVICE):
        stop = "the device is in an unknown state"
    elif not not_supported and impl.mutates is None:
        stop = "it does not declare what it mutates, so its inputs may be damaged; declare mutates=frozenset() if it mutates nothing"
    elif not not_supported and impl.mutates:
        stop = f"it declares that it mutates {', '.join(sorted(impl.mutates))}, so the inputs may be damaged"
    if stop is not None:
        raise OpExecutionError(
            f"{where} failed with {type(error).__name__}: {error}\n"
            f"  called with ({call})\n"
            f"  not passed on to another implementation: {stop}\n"
            f"  hint: deny it for this operator with per_op, or deny_vendors, and report the trace above to its vendor"
        ) from error
    if not not_supported:
        site.manager.failed(impl, facts.dtype_name(getattr(args[1], "dtype", None)) or "any", error)


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def _callers_mistake(site: Site, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    spec = site.manager.registry.spec(site.op_name)
    try:
        spec.signature.bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    return spec.check(*args, **kwargs) if spec.check is not None else None
