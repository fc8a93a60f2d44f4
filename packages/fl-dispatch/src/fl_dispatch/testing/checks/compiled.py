# SPDX-License-Identifier: Apache-2.0
"""``compile``: where an implementation can be in a compiled graph, it is one graph, without a break, for all sizes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from fl_dispatch.compiled import compile_refusal, compiled_call
from fl_dispatch.ops.spec import Sample
from fl_dispatch.testing.calls import Layer, compiled, copied, described, run, run_compiled
from fl_dispatch.testing.case import Case, CheckFailed, Figures, NotApplicable, Target
from fl_dispatch.testing.families import sized_samples
from fl_dispatch.testing.judge import Worst, compare
from fl_dispatch.testing.managers import manager_for

_TOKENS = (16, 24, 40)


def cases(target: Target) -> Iterator[Case]:
    """One, in the first dtype of those that models have."""
    meaning = "torch.compile(fullgraph=True) makes one graph of it, and one more for other sizes"
    yield Case("compile", meaning, partial(_check, target), "", target)


def dtype_of_models(target: Target) -> str:
    """bfloat16 where it is declared."""
    order = ("bfloat16", "float16", "float32")
    return next((name for name in order if name in target.dtypes), next(iter(target.dtypes), ""))


def _check(target: Target) -> Figures:
    from torch._dynamo.utils import counters

    dtype = dtype_of_models(target)
    worst, graphs, refusals = Worst(), 0, []
    chosen = list(sized_samples(target.spec, dtype, target.device, target.seed, _TOKENS[0])) if dtype else []
    for index, sample in enumerate(chosen[:2]):  # without and with a residual, or both styles of rotation
        layer = Layer(sample.obj)
        reason = target.verdict((layer, *sample.args), sample.kwargs)
        reason = reason or compile_refusal(target.impl, target.spec, layer)
        if reason is not None:
            refusals.append(reason)
            continue
        torch._dynamo.reset()
        counters.clear()
        site = manager_for(target, strict=True).bind(target.spec.name, layer, device_type=target.device, dtype=dtype)
        site.settle()
        graph = compiled(compiled_call(site), layer, target.compile_backend)
        for tokens in _TOKENS:
            fresh = list(sized_samples(target.spec, dtype, target.device, target.seed + tokens, tokens))[index]
            call = Sample(fresh.label, sample.obj, fresh.args, fresh.kwargs)
            eager = run(target, copied(call)[0], dtype)
            compare(target.spec, dtype, call, run_compiled(graph, copied(call)[0], dtype), worst, want=eager)
        graphs = max(graphs, counters["stats"]["unique_graphs"])
        if graphs > 2:
            raise CheckFailed(f"was compiled {graphs} times for {len(_TOKENS)} token counts", described(sample, dtype))
    torch._dynamo.reset()
    if not worst.calls:
        raise NotApplicable(next(iter(refusals), "the kit has no calls of models' sizes for this operator"))
    return {"backend": target.compile_backend, "graphs": graphs, **worst.as_figures()}
