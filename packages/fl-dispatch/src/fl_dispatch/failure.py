# SPDX-License-Identifier: Apache-2.0
"""What happens when an implementation cannot or did not serve a call: the same rules on the first and the 1000th call.

Not able (a declared limit, ``NotSupported``) is no error: the next candidate runs, the reason is kept. A failure is
passed on only when the implementation declares that it mutates nothing, nothing is being captured or traced, the policy
is not strict, and the error is neither the caller's mistake, nor out of memory, nor a lost device.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fl_dispatch.errors import FLDispatchError, NotSupported, OpArgumentError, OpExecutionError, SelectionError
from fl_dispatch.facts import tracing_or_capturing
from fl_dispatch.limits import check_for, describe_arguments, dtype_of, positional
from fl_dispatch.ops.spec import OpSpec
from fl_dispatch.types import OpImpl

if TYPE_CHECKING:
    from fl_dispatch.site import Site

logger = logging.getLogger("fl_dispatch")

_LOST_DEVICE = (
    "device-side assert",
    "illegal memory access",
    "misaligned address",
    "launch failure",
    "device lost",
    "ecc error",
    "aicore",
)


def recover(site: Site, error: Exception, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Called from the except branch of a site. Returns another candidate's result, or raises."""
    impl = site.impl
    if impl is None or isinstance(error, FLDispatchError) or getattr(error, "_fl_dispatch_judged", False):
        raise error
    args, kwargs = positional(site.manager.registry.spec(site.op_name).parameters, args, kwargs)
    _judge(site, impl, error, args, kwargs)
    return _run_rest(site, impl, f"raised {type(error).__name__}: {error}", error, args, kwargs)


def pass_on(site: Site, impl: OpImpl, reason: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A declared limit refuses this call before the kernel: let the next candidate serve it."""
    return _run_rest(site, impl, reason, None, args, kwargs)


def after(site: Site, impl: OpImpl) -> tuple[OpImpl, ...]:
    """The candidates that may take over from one, in order; none under strict."""
    usable = site.selection.usable if site.selection is not None else ()
    # Another thread may have changed the selection since the call began: then everything in it but this one is next.
    return usable[usable.index(impl) + 1 :] if impl in usable else usable


def _run_rest(
    site: Site, failed: OpImpl, reason: str, error: Exception | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    ledger, dtype = site.manager.failures, dtype_of(args)
    verdicts = [(failed, reason)]
    raised = [] if error is None or isinstance(error, NotSupported) else [(failed, error)]
    for impl in after(site, failed):
        verdict = check_for(site, impl)
        why_not = None if verdict is None else verdict(args, kwargs)
        if why_not is None:
            try:
                comparison = site.manager.comparison
                if comparison is None or kwargs:
                    result = impl.fn(*args, **kwargs)
                else:
                    result = comparison.judge(site, impl, args)
            except Exception as next_error:  # noqa: BLE001  (judged at once: raised again unless it may be passed on)
                _judge(site, impl, next_error, args, kwargs)
                why_not, error = f"raised {type(next_error).__name__}: {next_error}", next_error
                if not isinstance(next_error, NotSupported):
                    raised.append((impl, next_error))
            else:
                if ledger.is_watched(impl):
                    site.manager.succeeded(impl, dtype)
                # Only now: where nothing else can serve, there is nobody to demote it in favour of.
                for culprit, its_error in raised:
                    site.manager.failed(culprit, dtype, its_error)
                pair = (failed.impl_id, impl.impl_id)
                site.fallbacks[pair] = site.fallbacks.get(pair, 0) + 1
                if ledger.note(failed, reason):
                    logger.warning(
                        "operator %s: %s did not serve a call (%s); %s did. "
                        "Further such calls are counted, not logged.",
                        *(site.op_name, failed.impl_id, reason, impl.impl_id),
                    )
                return result
        verdicts.append((impl, why_not))
    strict = site.selection is not None and site.selection.policy.strict
    lines = "".join(f"\n   x {impl.impl_id:<24} {why}" for impl, why in verdicts)
    what = "strict, and the chosen implementation" if strict else "no implementation"
    kind = SelectionError if error is None else OpExecutionError
    hint = "turn strict off, or widen the order" if strict else "`fl-dispatch explain` shows every limit"
    raise kind(
        f"operator {site.op_name!r} called with ({describe_arguments(args, kwargs)}): {what} is "
        f"{'not ' if strict else ''}able to serve it{lines}\n"
        f"  hint: {hint}"
    ) from error


def _judge(site: Site, impl: OpImpl, error: Exception, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise unless the failure of ``impl`` may be passed on to the next candidate."""
    if isinstance(error, FLDispatchError) or getattr(error, "_fl_dispatch_judged", False):
        raise error
    selection = site.selection
    strict = selection is not None and selection.policy.strict
    where = f"operator {site.op_name!r}, implementation {impl.impl_id!r}"
    call = describe_arguments(args, kwargs)
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
    elif tracing_or_capturing():
        stop = "a trace or graph capture is under way, where nothing can be retried"
    elif _is_lost_device(error):
        stop = "the device is in an unknown state"
    elif not not_supported and impl.mutates is None:
        stop = (
            "it does not declare what it mutates, so the inputs may be damaged; "
            "mutates=frozenset() says that it does not"
        )
    elif not not_supported and (
        written := may_have_written(impl, site.manager.registry.spec(site.op_name), args, kwargs)
    ):
        stop = f"it declares that it mutates {', '.join(sorted(written))}, so the inputs may be damaged"
    if stop is not None:
        raise OpExecutionError(
            f"{where} failed with {type(error).__name__}: {error}\n"
            f"  called with ({call})\n"
            f"  not passed on to another implementation: {stop}\n"
            f"  hint: go on without it by per_op, for example {site.op_name}=reference, and report the trace above to its vendor"
        ) from error


def may_have_written(impl: OpImpl, spec: OpSpec, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> frozenset[str]:
    """The arguments of one call that an implementation with declared mutations may have written to."""
    return (impl.mutates or frozenset()) & writable(spec, args, kwargs)


def writable(spec: OpSpec, args: Sequence[Any], kwargs: Mapping[str, Any]) -> frozenset[str]:
    """The arguments of one call that an implementation may write to.

    An operator with several writable arguments writes only where all are given (``rms_norm`` without a residual writes
    nothing), and nothing with ``inplace=False``.
    """
    given = {**dict(zip(spec.parameters, args, strict=False)), **kwargs}
    if given.get("inplace") is False or any(given.get(name) is None for name in spec.may_mutate):
        return frozenset()
    return spec.may_mutate


def _is_out_of_memory(error: Exception) -> bool:
    # Devices other than CUDA say it in words only.
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "out of memory" in str(error).lower()
    )


def _is_lost_device(error: Exception) -> bool:
    text = str(error).lower()
    return type(error).__name__ == "AcceleratorError" or any(mark in text for mark in _LOST_DEVICE)


def _callers_mistake(site: Site, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    spec = site.manager.registry.spec(site.op_name)
    try:
        spec.signature.bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    return spec.check(*args, **kwargs) if spec.check is not None else None
