# SPDX-License-Identifier: Apache-2.0
"""The functions that run at a site: the implementation itself where the decision settled all, else with its checks.

Guards and checks are compiled with exactly the operator's parameters, as dataclasses do it: a generic ``*args,
**kwargs`` would cost several times as much as what it wraps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fl_dispatch import failure
from fl_dispatch.facts import is_tracing
from fl_dispatch.limits import check_for, dtype_of, layer_verdict, positional, torch_dtypes
from fl_dispatch.ops.spec import OpSpec
from fl_dispatch.types import OpImpl

if TYPE_CHECKING:
    from fl_dispatch.comparison import Comparison
    from fl_dispatch.site import Site

_IN_A_GRAPH = "        if _is_compiling() and _site.prepare_compiled():\n            return _site.compiled({names})\n"


def compose(site: Site, impl: OpImpl) -> Callable[..., Any]:
    """The callable for a site: the implementation itself, with only those checks that the decision could not settle."""
    comparison = site.manager.comparison
    fn = impl.fn if comparison is None else _compared(comparison, site, impl)
    if site.manager.failures.is_watched(impl):
        fn = _watched(site, impl, fn)
    check = check_for(site, impl)
    if check is not None:
        fn = _checked(site, impl, fn)
    if site.is_traced:
        reached = (impl, *(() if check is None else failure.after(site, impl)))
        if not all(one.traceable for one in reached):
            fn = _compilable(site, fn)
    return _counted(site, fn) if site.manager.counts_calls and site.obj is not None else fn


def by_tokens(site: Site) -> Callable[..., Any]:
    """The callable of a site with parts: looks at the number of tokens and calls that part's.

    In a graph under compilation one opaque operator does so when it runs: a graph that looked would hold for one part only.
    Without a layer (``call_op``, ``resolve_op``) there is no such operator, and such a graph is made for each part.
    """
    from torch.compiler import is_dynamo_compiling

    spec = site.manager.registry.spec(site.op_name)
    *bounded, _ = site.parts
    lines = []
    if site.obj is not None:
        lines.append(_IN_A_GRAPH)
    lines.append(f"        _tokens = {spec.parameters[1]}.shape[0]\n")
    for number, (bound, _) in enumerate(bounded):
        lines.append(f"        {'el' if number else ''}if _tokens <= {bound}:\n            _fn = _part{number}.fn\n")
    lines.append(f"        else:\n            _fn = _part{len(bounded)}.fn\n        return _fn({{names}})\n")
    parts = {f"_part{number}": part for number, (_, part) in enumerate(site.parts)}
    return _compiled(spec, "".join(lines), _is_compiling=is_dynamo_compiling, _site=site, **parts)


def guarded(site: Site, spec: OpSpec) -> Callable[..., Any]:
    """A function with the operator's standard signature that calls through the site, its attribute ``site``."""
    function = _compiled(
        spec,
        "        _fn = _site.fn\n"
        "        try:\n"
        "            return _fn({names})\n"
        "        except Exception as _error:\n"
        "            return _site.recover(_error, {names})\n",
        _site=site,
    )
    function.__doc__ = spec.reference.__doc__
    function.site = site  # type: ignore[attr-defined]  # keeps the site alive as long as its function
    return function


def _compilable(site: Site, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Where a trace meets what it cannot look into: in a graph under compilation an opaque operator is called instead."""
    from torch.compiler import is_dynamo_compiling

    spec = site.manager.registry.spec(site.op_name)
    body = f"{_IN_A_GRAPH}        return _fn({{names}})\n"
    return _compiled(spec, body, _is_compiling=is_dynamo_compiling, _site=site, _fn=fn)


def _counted(site: Site, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Where somebody wants to know: each call of a layer's site adds one. Nobody else pays for it."""
    from torch.compiler import is_dynamo_compiling

    spec = site.manager.registry.spec(site.op_name)
    # Not in a trace: the counter's value would be a condition of the graph, compiled anew for each call.
    body = "        if not _is_tracing():\n            _site.calls += 1\n        return _fn({names})\n"
    return _compiled(spec, body, _is_tracing=is_dynamo_compiling, _site=site, _fn=fn)


def _compared(comparison: Comparison, site: Site, impl: OpImpl) -> Callable[..., Any]:
    """Where somebody looks for a wrong number: each call is judged; Dynamo need not look at how."""
    from torch.compiler import is_dynamo_compiling

    spec = site.manager.registry.spec(site.op_name)
    return _compiled(
        spec,
        "        if _is_tracing():\n            return _fn({names})\n        return _judged({names})\n",
        _is_tracing=is_dynamo_compiling,
        _fn=impl.fn,
        _judged=lambda *args: comparison.judge(site, impl, args),
    )


def _watched(site: Site, impl: OpImpl, fn: Callable[..., Any]) -> Callable[..., Any]:
    """After a failure: the first success takes this wrapper out again."""
    parameters = site.manager.registry.spec(site.op_name).parameters

    @functools.wraps(fn)
    def watched(*args: Any, **kwargs: Any) -> Any:
        result = fn(*args, **kwargs)
        if not is_tracing():
            site.manager.succeeded(impl, dtype_of(positional(parameters, args, kwargs)[0]))
        return result

    return watched


def _checked(site: Site, impl: OpImpl, fn: Callable[..., Any]) -> Callable[..., Any]:
    """The implementation behind the quickest test that answers yes; a no, or a raise, is looked into in ``refused``."""
    spec = site.manager.registry.spec(site.op_name)
    demoted = site.manager.failures.demoted_dtypes(impl)
    first = spec.parameters[0]
    tests = []
    if len(spec.parameters) > 1:
        x = spec.parameters[1]
        if impl.dtypes is not None and site.dtype is None:
            tests.append(f"{x}.dtype in _allowed")
        if demoted and site.dtype is None:
            tests.append(f"{x}.dtype not in _excluded")
        if impl.devices is not None and site.device_type is None:
            tests.append(f"{x}.device.type in _devices")
    if site.obj is None and (impl.honours or impl.supports_layer):
        tests.append(f"_layer_verdict(_impl, {first}, _field_defaults) is None")
    if impl.supports is not None:
        tests.append("_supports({names}) is True")
    return _compiled(
        spec,
        "        try:\n"
        f"            _able = {' and '.join(tests) or True}\n"
        "        except Exception:\n"
        "            _able = False\n"
        "        if _able:\n"
        "            return _fn({names})\n"
        "        return _refused({names})\n",
        _fn=fn,
        _allowed=torch_dtypes(impl.dtypes or frozenset()),
        _excluded=torch_dtypes(demoted),
        _devices=impl.devices,
        _supports=impl.supports,
        _layer_verdict=layer_verdict,
        _impl=impl,
        _field_defaults=spec.field_defaults,
        _refused=_refused(site, impl, fn),
    )


def _refused(site: Site, impl: OpImpl, fn: Callable[..., Any]) -> Callable[..., Any]:
    verdict = check_for(site, impl)
    rest = tuple((other.fn, check_for(site, other)) for other in failure.after(site, impl))

    def refused(*args: Any) -> Any:
        reason = None if verdict is None else verdict(args, {})
        if reason is None:
            return fn(*args)
        if is_tracing():
            # Here nothing may be counted or logged: find the candidate that this graph is to run.
            for other, other_verdict in rest:
                if other_verdict is None or other_verdict(args, {}) is None:
                    return other(*args)
        return failure.pass_on(site, impl, reason, args, {})

    return refused


def _compiled(spec: OpSpec, body: str, **free: Any) -> Callable[..., Any]:
    """A function with the operator's name, parameters and defaults; ``{names}`` in its body are all of them.

    Our own names begin with an underscore, so that they are not those of parameters.
    """
    parameters = tuple((p.name, p.default is not p.empty) for p in spec.signature.parameters.values())
    defaults = tuple(p.default for p in spec.signature.parameters.values())
    function: Callable[..., Any] = _factory(spec.name, parameters, body, tuple(free))(defaults, **free)
    return function


@functools.cache
def _factory(op_name: str, parameters: tuple[tuple[str, bool], ...], body: str, free: tuple[str, ...]) -> Any:
    header = ", ".join(f"{name}=_defaults[{i}]" if has else name for i, (name, has) in enumerate(parameters))
    inside = body.format(names=", ".join(name for name, _ in parameters))
    source = f"def make(_defaults, {', '.join(free)}):\n    def {op_name}({header}):\n{inside}    return {op_name}\n"
    namespace: dict[str, Any] = {}
    exec(compile(source, f"<fl_dispatch call of {op_name}>", "exec"), namespace)
    return namespace["make"]
