# SPDX-License-Identifier: Apache-2.0
"""``limits``: what is declared holds in both directions, as ``call_op`` finds it.

``accepts``: every call that the declared limits admit is served. ``refuses``: every other call is refused before the
kernel is reached, and the reference serves it. ``predicates``: they answer, always the same, and touch nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from fl_dispatch.errors import NotSupported, OpExecutionError, SelectionError
from fl_dispatch.limits import positional
from fl_dispatch.ops.spec import Sample
from fl_dispatch.testing.calls import as_results, copied, described, samples
from fl_dispatch.testing.case import Case, CheckFailed, Figures, NotApplicable, Target
from fl_dispatch.testing.judge import Worst, compare
from fl_dispatch.testing.managers import Spy, manager_for


def cases(target: Target) -> Iterator[Case]:
    """Three kinds; the first for each declared dtype, and once where that is none."""
    meaning = "every call that the declared limits admit is served"
    if target.spec.tolerances and not target.dtypes:
        yield Case("limits", meaning, partial(_no_dtype, target), "accepts", target)
    for dtype in target.dtypes:
        yield Case("limits", meaning, partial(_accepts, target, dtype), f"accepts-{dtype}", target)
    meaning = "a call outside of the declared limits never reaches the implementation"
    yield Case("limits", meaning, partial(_refuses, target), "refuses", target)
    meaning = "the predicates answer True or a reason, always the same, and touch nothing"
    yield Case("limits", meaning, partial(_predicates, target), "predicates", target)


def _no_dtype(target: Target) -> Figures:
    raise CheckFailed(
        f"declares dtypes={sorted(target.impl.dtypes or ())}, none of those that {target.spec.name} is checked in, "
        "so nothing of it was checked",
        details={
            "checked": ", ".join(target.spec.tolerances),
            "hint": "name the dtypes it takes, or leave dtypes out for any; what takes none is better not registered",
        },
    )


def _accepts(target: Target, dtype: str) -> Figures:
    spy = Spy(target.impl)
    manager = manager_for(target, spy.impl, strict=True)
    served, refused, unsupported = 0, [], []
    for _, sample in samples(target.spec, dtype, target.device, target.seed):
        reason = target.verdict((sample.obj, *sample.args), sample.kwargs)
        if reason is not None:
            refused.append(reason)
            continue
        given, memory = copied(sample)
        before = spy.calls
        try:
            manager.call_op(target.spec.name, given.obj, *given.args, **given.kwargs)
        except OpExecutionError as error:
            if not isinstance(error.__cause__, NotSupported):
                raise _not_served(error, sample, dtype) from error.__cause__
            if any(not torch.equal(block.block, block.before) for block in memory):
                raise CheckFailed(
                    f"raised NotSupported({str(error.__cause__)!r}) after it had written to its inputs; "
                    "it is allowed only before any write, because the next implementation takes over",
                    described(sample, dtype),
                ) from error
            unsupported.append(str(error.__cause__))
            continue
        except Exception as error:
            raise _not_served(error, sample, dtype) from error
        if spy.calls != before + 1:
            raise CheckFailed(f"was called {spy.calls - before} times for one call", described(sample, dtype))
        served += 1
    if not served:
        reason = next(iter((*refused, *unsupported)), "the operator has no samples")
        raise CheckFailed(
            f"declares {dtype} and serves none of {len(refused) + len(unsupported)} calls",
            details={"its reason": reason, "hint": f"leave {dtype} out of dtypes, or widen the predicates"},
        )
    return {"served": served, "refused": len(refused), "not_supported": len(unsupported)}


def _not_served(error: Exception, sample: Sample, dtype: str) -> CheckFailed:
    cause = error.__cause__ or error
    return CheckFailed(
        f"raised {type(cause).__name__}: {cause}",
        described(sample, dtype),
        {"hint": "declare in dtypes, supports or supports_layer what it cannot take; dispatch then goes elsewhere"},
    )


def _refuses(target: Target) -> Figures:
    spy = Spy(target.impl)
    strict = manager_for(target, spy.impl, strict=True)
    lenient = manager_for(target, spy.impl, strict=False)
    worst, count = Worst(), 0
    for dtype, sample in _outside(target):
        count += 1
        given, _ = copied(sample)
        try:
            strict.call_op(target.spec.name, given.obj, *given.args, **given.kwargs)
        except SelectionError:
            pass
        except Exception as error:
            raise CheckFailed(
                f"a call outside of its limits raised {type(error).__name__}: {error}", described(sample, dtype)
            ) from error
        else:
            raise CheckFailed("a call outside of its limits was served", described(sample, dtype))
        if target.impl.impl_id != "reference":
            given, _ = copied(sample)
            results = as_results(lenient.call_op(target.spec.name, given.obj, *given.args, **given.kwargs))
            if dtype in target.spec.tolerances:
                compare(target.spec, dtype, sample, results, worst)
        if spy.calls:
            raise CheckFailed("a call outside of its limits reached it", described(sample, dtype))
    if not count:
        raise NotApplicable("it declares no limit that a call of the kit breaks")
    return {"refused": count}


def _outside(target: Target) -> Iterator[tuple[str, Sample]]:
    """Calls that the declared limits do not admit: samples, another dtype, another device."""
    for dtype in target.spec.tolerances:
        for family, sample in samples(target.spec, dtype, target.device, target.seed):
            if family != "model_sizes" and target.verdict((sample.obj, *sample.args), sample.kwargs) is not None:
                yield dtype, sample
    dtype = next(iter(target.spec.tolerances))
    labelled = samples(target.spec, dtype, target.device, target.seed)
    plain = next((sample for family, sample in labelled if family == "ordinary"), None)
    if plain is None:
        return
    others = [("float64", _moved(plain, lambda value: value.double() if value.is_floating_point() else value))]
    if target.device != "cpu":
        others.append((dtype, _moved(plain, torch.Tensor.cpu)))
    for name, sample in others:
        if target.verdict((sample.obj, *sample.args), sample.kwargs) is not None:
            yield name, sample


def _moved(sample: Sample, change: Any) -> Sample:
    def one(value: Any) -> Any:
        return change(value) if isinstance(value, torch.Tensor) else value

    obj = SimpleNamespace(**{name: one(value) for name, value in vars(sample.obj).items()})
    return replace(sample, label=f"moved: {sample.label}", obj=obj, args=tuple(map(one, sample.args)))


def _predicates(target: Target) -> Figures:
    impl, asked = target.impl, 0
    if impl.supports is None and impl.supports_layer is None:
        raise NotApplicable("it declares neither supports nor supports_layer")
    for dtype in target.dtypes:
        for _, sample in samples(target.spec, dtype, target.device, target.seed):
            given, memory = copied(sample)
            placed, named = positional(target.spec.parameters, (given.obj, *given.args), given.kwargs)
            for name, predicate, args, kwargs in (
                ("supports_layer", impl.supports_layer, (given.obj,), {}),
                ("supports", impl.supports, placed, named),
            ):
                if predicate is None:
                    continue
                try:
                    answers = [predicate(*args, **kwargs) for _ in range(3)]
                except Exception as error:
                    raise CheckFailed(
                        f"{name}() raised {type(error).__name__}: {error}; dispatch takes that for a refusal",
                        described(sample, dtype),
                    ) from error
                asked += 1
                if any(type(answer) not in (bool, str) for answer in answers):
                    raise CheckFailed(
                        f"{name}() answered {answers[0]!r}, not True or a reason", described(sample, dtype)
                    )
                if len(set(answers)) > 1:
                    raise CheckFailed(f"{name}() answered {answers} to the same call", described(sample, dtype))
            if any(not torch.equal(block.block, block.before) for block in memory):
                raise CheckFailed("a predicate wrote to the tensors that it was asked about", described(sample, dtype))
    return {"asked": asked}
