# SPDX-License-Identifier: Apache-2.0
"""What a compiled graph runs: traceable implementations as they are, all others as operators of ``fl_dispatch.opaque``."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from typing import Any

from fl_dispatch import failure
from fl_dispatch.errors import SelectionError
from fl_dispatch.limits import Checker, check_for, positional
from fl_dispatch.opaque import argument_types, field_types, opaque_form
from fl_dispatch.ops.spec import OpSpec
from fl_dispatch.site import Site
from fl_dispatch.types import BackendImplKind, OpImpl

logger = logging.getLogger("fl_dispatch")


def compile_refusal(impl: OpImpl, spec: OpSpec, obj: Any, by_tokens: bool = False) -> str | None:
    """Why an implementation cannot be in a compiled graph; None when it can. ``obj`` is the layer it is to serve.

    With ``by_tokens`` the graph decides by the number of tokens when it runs, in an opaque operator, which holds for all.
    """
    if impl.traceable and not by_tokens:
        return None
    if impl.kind is BackendImplKind.NATIVE:
        return (
            "the framework's own method needs its whole layer, which the operator that decides by tokens in a compiled "
            "graph does not have"
        )
    if impl.reads is None:
        return (
            "does not declare which fields of obj it reads, so it cannot be in a compiled graph; "
            f"declare reads=frozenset({{...}}) out of: {', '.join(field.name for field in spec.fields) or 'nothing'}"
        )
    try:
        argument_types(spec)
        field_types(spec, obj)
    except TypeError as error:
        return f"cannot be in a compiled graph: {error}"
    return None


def compiled_form(impl: OpImpl, spec: OpSpec, obj: Any) -> Callable[..., Any]:
    """The implementation as a function with the standard signature that ``torch.compile`` can trace, for layers like ``obj``.

    Raises:
        SelectionError: ``compile_refusal`` gives a reason against it.
    """
    if impl.traceable:
        return impl.fn
    reason = compile_refusal(impl, spec, obj)
    if reason is not None:
        raise SelectionError(f"operator {spec.name!r}, implementation {impl.impl_id!r}: {reason}")
    return opaque_form(impl, spec, obj)


def compiled_call(site: Site) -> Callable[..., Any]:
    """What a graph runs at a bound site: the chosen implementation, and where it declares limits on single calls, the checks
    and the candidates after it. Nothing is counted, retried or decided in there, and a later change does not reach it.
    """
    if site.parts:
        return _by_tokens(site)
    chosen = site.impl
    if chosen is None:
        raise SelectionError(f"operator {site.op_name!r}: the site has not decided yet; call settle() before compiling")
    spec = site.manager.registry.spec(site.op_name)
    forms = [
        (compiled_form(impl, spec, site.obj), check_for(site, impl)) for impl in (chosen, *failure.after(site, chosen))
    ]
    first, check = forms[0]
    if check is None:
        return first
    candidates = tuple(forms)
    parameters = spec.parameters

    def checked(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = positional(parameters, args, kwargs)
        for form, verdict in candidates:
            if verdict is None or verdict(args, kwargs) is None:
                return form(*args, **kwargs)
        raise SelectionError(f"operator {spec.name!r}: no implementation takes a call of a graph under compilation")

    return checked


def _by_tokens(site: Site) -> Callable[..., Any]:
    """One opaque operator that looks at the number of tokens when the graph runs, for a site with parts."""
    spec = site.manager.registry.spec(site.op_name)
    chains = [(bound, _chain(part, spec)) for bound, part in site.parts]

    def fn(*args: Any) -> Any:
        tokens = args[1].size(0)
        chain = next(chain for bound, chain in chains if bound is None or tokens <= bound)
        for impl, verdict in chain:
            if verdict is None or verdict(args, {}) is None:
                return impl.fn(*args)
        raise SelectionError(f"operator {spec.name!r}: no implementation takes a call of a compiled graph")

    members = [impl for _, chain in chains for impl, _ in chain]
    mutates = [spec.may_mutate if impl.mutates is None else impl.mutates for impl in members]
    reads = [impl.reads or frozenset() for impl in members]
    # What the operator does has to follow from its name: a graph may come from a cache.
    content = [(bound, [(impl.impl_id, verdict is None) for impl, verdict in chain]) for bound, chain in chains]
    settled = (site.dtype, site.device_type, site.obj is None)
    digest = hashlib.sha256(repr((content, settled)).encode()).hexdigest()[:8]
    impl = OpImpl(
        spec.name,
        f"by_tokens_{digest}",
        BackendImplKind.REFERENCE,
        fn,
        mutates=frozenset().union(*mutates),
        reads=frozenset().union(*reads),
    )
    return opaque_form(impl, spec, site.obj)


def _chain(part: Site, spec: OpSpec) -> list[tuple[OpImpl, Checker | None]]:
    """The candidates of one part that can be in the operator, in order, each with the check of a single call."""
    chosen = part.impl
    candidates = () if chosen is None else (chosen, *failure.after(part, chosen))
    chain: list[tuple[OpImpl, Checker | None]] = []
    refused: list[tuple[OpImpl, str]] = []
    for impl in candidates:
        reason = compile_refusal(impl, spec, part.obj, by_tokens=True)
        if reason is None:
            chain.append((impl, check_for(part, impl)))
        elif not chain:
            refused.append((impl, reason))
    if not chain:
        why = "; ".join(f"{impl.impl_id}: {reason}" for impl, reason in refused)
        raise SelectionError(f"operator {spec.name!r} ({part.label}) has no implementation for a compiled graph: {why}")
    for impl, reason in refused:
        # Not what the table says, so it is said, and kept for the report.
        if part.manager.failures.note(impl, f"in a compiled graph {chain[0][0].impl_id} runs instead: {reason}"):
            logger.warning(
                "operator %s (%s): in a compiled graph %s runs instead of %s, because %s",
                *(spec.name, part.label, chain[0][0].impl_id, impl.impl_id, reason),
            )
    return chain
