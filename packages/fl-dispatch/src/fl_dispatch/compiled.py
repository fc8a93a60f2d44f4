# SPDX-License-Identifier: Apache-2.0
"""What a compiled graph runs: traceable implementations as they are, all others as operators of ``fl_dispatch.opaque``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fl_dispatch import failure
from fl_dispatch.errors import SelectionError
from fl_dispatch.limits import check_for, positional
from fl_dispatch.opaque import argument_types, field_types, opaque_form
from fl_dispatch.ops.spec import OpSpec
from fl_dispatch.site import Site
from fl_dispatch.types import OpImpl


def compile_refusal(impl: OpImpl, spec: OpSpec, obj: Any) -> str | None:
    """Why an implementation cannot be in a compiled graph; None when it can. ``obj`` is the layer it is to serve."""
    if impl.traceable:
        return None
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
