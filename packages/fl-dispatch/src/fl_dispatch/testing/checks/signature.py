# SPDX-License-Identifier: Apache-2.0
"""``signature``: every argument can be passed by place and by name, and what is left out has the standard default."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from fl_dispatch.errors import RegistrationError
from fl_dispatch.registry import check_signature
from fl_dispatch.testing.calls import as_results, copied, described, samples_for
from fl_dispatch.testing.case import Case, CheckFailed, Figures, NotApplicable, Target


def cases(target: Target) -> Iterator[Case]:
    """One."""
    yield Case("signature", "takes the standard arguments, by place and by name", partial(_check, target), "", target)


def _check(target: Target) -> Figures:
    spec, fn = target.spec, target.impl.fn
    try:
        check_signature(target.impl, spec)
    except RegistrationError as error:
        raise CheckFailed(str(error)) from error
    calls = 0
    for dtype in target.dtypes[:1]:
        seen = set()
        for family, sample in samples_for(target, dtype):
            pattern = (len(sample.args), tuple(sorted(sample.kwargs.items())))
            if family in ("zero_tokens", "model_sizes") or pattern in seen:
                continue
            seen.add(pattern)
            bound = spec.signature.bind(sample.obj, *sample.args, **sample.kwargs)
            complete = spec.signature.bind(sample.obj, *sample.args, **sample.kwargs)
            complete.apply_defaults()
            named = list(bound.arguments)[1:]
            ways = {"by place": tuple(complete.args), "by name": None}
            results = {}
            for way, args in ways.items():
                given, _ = copied(sample)
                values = spec.signature.bind(given.obj, *given.args, **given.kwargs)
                try:
                    if args is None:
                        results[way] = as_results(fn(given.obj, **{name: values.arguments[name] for name in named}))
                    else:
                        values.apply_defaults()
                        results[way] = as_results(fn(*values.args))
                except TypeError as error:
                    raise CheckFailed(
                        f"with its arguments passed {way} it raised TypeError: {error}",
                        described(sample, dtype),
                        {"standard": f"{spec.name}{spec.signature}"},
                    ) from error
                calls += 1
            one, other = results.values()
            if len(one) != len(other) or any(
                not torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(one, other, strict=True)
            ):
                raise CheckFailed("gives other results by name than by place", described(sample, dtype))
    if not calls:
        raise NotApplicable("its declared limits refuse every call of the kit")
    return {"calls": calls}
