# SPDX-License-Identifier: Apache-2.0
"""``shapes``: number, shape, dtype, device and layout of the results are the operator's, and those that a trace sees."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fl_dispatch.compiled import compile_refusal, compiled_form
from fl_dispatch.ops.spec import Sample
from fl_dispatch.testing.calls import Results, as_results, copied, described, run, samples_for
from fl_dispatch.testing.case import Case, CheckFailed, Figures, NotApplicable, Target


def cases(target: Target) -> Iterator[Case]:
    """Both for each declared dtype."""
    for dtype in target.dtypes:
        meaning = "number, shape, dtype and device of the results are the reference's; dense inputs give dense results"
        yield Case("shapes", meaning, partial(_real, target, dtype), f"real-{dtype}", target)
        meaning = "a trace with fake tensors sees the shapes and dtypes that a real call has"
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
        form = compiled_form(target.impl, target.spec, sample.obj)
        try:
            # Tensors of its own, such as a table, are constants of a graph.
            with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                fake = _faked(sample, mode)
                seen_by_trace = _form(as_results(form(fake.obj, *fake.args, **fake.kwargs)))
        except Exception as error:
            raise CheckFailed(
                f"with fake tensors it raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
                described(sample, dtype),
                {"hint": "traceable=True is for torch operators only; without it, it becomes an opaque operator"},
            ) from error
        calls += 1
        if seen_by_trace != real:
            raise CheckFailed(
                f"a trace sees {_words(seen_by_trace)}, a call returns {_words(real)}", described(sample, dtype)
            )
    if not calls:
        raise NotApplicable("its declared limits refuse every call of the kit")
    return {"calls": calls}


def _faked(sample: Sample, mode: FakeTensorMode) -> Sample:
    def one(value: Any) -> Any:
        return mode.from_tensor(value) if isinstance(value, torch.Tensor) else value

    obj = SimpleNamespace(**{name: one(value) for name, value in vars(sample.obj).items()})
    return Sample(sample.label, obj, tuple(map(one, sample.args)), sample.kwargs)


def _words(forms: list[tuple[Any, ...]]) -> str:
    return ", ".join(f"{form[1]}{list(form[0])}@{form[2]}" if len(form) == 3 else str(form[0]) for form in forms)
