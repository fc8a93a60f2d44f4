# SPDX-License-Identifier: Apache-2.0
"""``shapes``: number, shape, dtype, device and layout of the results are the operator's, and those that a trace sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from fl_dispatch.compiled import compile_refusal, compiled_form
from fl_dispatch.ops.spec import Sample
from fl_dispatch.testing.calls import (
    Layer,
    Results,
    as_results,
    compiled,
    copied,
    described,
    run,
    run_compiled,
    samples_for,
)
from fl_dispatch.testing.case import Case, CheckFailed, Figures, NotApplicable, Target


def cases(target: Target) -> Iterator[Case]:
    """Both for each declared dtype."""
    for dtype in target.dtypes:
        meaning = "number, shape, dtype and device of the results are the reference's; dense inputs give dense results"
        yield Case("shapes", meaning, partial(_real, target, dtype), f"real-{dtype}", target)
        meaning = "torch.compile sees the shapes and dtypes that a real call has"
        yield Case("shapes", meaning, partial(_fake, target, dtype), f"fake-{dtype}", target)


def _form(results: Results) -> list[tuple[Any, ...]]:
    anything: tuple[Any, ...] = results  # a vendor may return what it likes
    return [
        (tuple(result.shape), str(result.dtype).removeprefix("torch."), result.device.type)
        if isinstance(result, torch.Tensor)
        else (type(result).__name__,)
        for result in anything
    ]


def _real(target: Target, dtype: str) -> Figures:
    calls = 0
    for _, sample in samples_for(target, dtype):
        results = run(target, copied(sample)[0], dtype)
        got = _form(results)
        wanted = as_results(target.spec.reference(sample.obj, *sample.args, **sample.kwargs))
        want = _form(wanted)
        calls += 1
        if got != want:
            raise CheckFailed(f"returns {_words(got)} instead of {_words(want)}", described(sample, dtype))
        # Where the operator itself gives a view, as its reference shows, so may they.
        apart = [
            result.stride()
            for result, reference in zip(results, wanted, strict=True)
            if reference.is_contiguous() and not result.is_contiguous()
        ]
        given = [value for value in (*sample.args, *sample.kwargs.values()) if isinstance(value, torch.Tensor)]
        if apart and all(value.is_contiguous() for value in given):
            raise CheckFailed(
                f"contiguous inputs gave a result with strides {apart[0]}; frameworks take views that need it contiguous",
                described(sample, dtype),
            )
    return {"calls": calls}


def _fake(target: Target, dtype: str) -> Figures:
    calls, seen = 0, set()
    for family, sample in samples_for(target, dtype):
        if family == "model_sizes" or (family, len(sample.args)) in seen:
            continue
        seen.add((family, len(sample.args)))
        refusal = compile_refusal(target.impl, target.spec, sample.obj)
        if refusal is not None:
            raise NotApplicable(refusal)
        real = _form(run(target, copied(sample)[0], dtype))
        seen_by_trace = _traced(compiled_form(target.impl, target.spec, sample.obj), sample, dtype)
        calls += 1
        if seen_by_trace != real:
            raise CheckFailed(
                f"a trace sees {_words(seen_by_trace)}, a call returns {_words(real)}", described(sample, dtype)
            )
    if not calls:
        raise NotApplicable("its declared limits refuse every call of the kit")
    return {"calls": calls}


def _traced(form: Callable[..., Any], sample: Sample, dtype: str) -> list[tuple[Any, ...]]:
    """What Dynamo takes the results to be. Not just fake tensors: a kernel that is handed their addresses ends the process's
    use of the device, whereas Dynamo refuses what it cannot trace.
    """
    given, _ = copied(sample)

    # Told by the function itself: a graph gives what is stored somewhere as well, and no result that is an input.
    def told(layer: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return tuple(_form(as_results(form(layer, *args, **kwargs))))

    torch._dynamo.reset()
    forms: tuple[Any, ...] = run_compiled(compiled(told, Layer(given.obj), "eager"), given, dtype)
    return list(forms)


def _words(forms: list[tuple[Any, ...]]) -> str:
    return ", ".join(f"{form[1]}{list(form[0])}@{form[2]}" if len(form) == 3 else str(form[0]) for form in forms)
