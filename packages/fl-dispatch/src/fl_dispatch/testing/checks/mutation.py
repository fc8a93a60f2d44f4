# SPDX-License-Identifier: Apache-2.0
"""``mutation``: an implementation writes to what it declares, within its bounds, and to nothing else; and what it
returns belongs to the caller.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from fl_dispatch.failure import may_have_written
from fl_dispatch.ops.spec import Sample
from fl_dispatch.testing.calls import GUARD, Memory, Results, copied, described, run, samples_for
from fl_dispatch.testing.case import Case, CheckFailed, Figures, NotApplicable, Target
from fl_dispatch.testing.judge import Worst, compare
from fl_dispatch.testing.state import TorchState

_MEANINGS = {
    "writes": "writes to the arguments it declares and to nothing else, and leaves torch's settings alone",
    "aliases": "results share no memory with each other, or with arguments it does not declare",
    "kept": "results of a call are not changed by the next one",
    "same_residual": "arguments that are one and the same tensor do not disturb each other",
}


def cases(target: Target) -> Iterator[Case]:
    """For each declared dtype."""
    for dtype in target.dtypes:
        for variant, check in (("writes", _writes), ("aliases", _aliases), ("kept", _kept)):
            yield Case("mutation", _MEANINGS[variant], partial(check, target, dtype), f"{variant}-{dtype}", target)
    if "residual" in target.spec.parameters:
        yield Case("mutation", _MEANINGS["same_residual"], partial(_same_residual, target), "same_residual", target)


def _permitted(target: Target, sample: Sample) -> frozenset[str]:
    """The arguments that this call may write to: the operator's permission and the implementation's declaration."""
    impl = target.impl
    if impl.mutates is None:
        impl = dataclasses.replace(impl, mutates=target.spec.may_mutate)
    return may_have_written(impl, target.spec, (sample.obj, *sample.args), sample.kwargs)


def _writes(target: Target, dtype: str) -> Figures:
    permitted_at_all: set[str] = set()
    written: set[str] = set()
    calls = 0
    for _, sample in samples_for(target, dtype):
        given, memory = copied(sample)
        fields = set(vars(given.obj))
        _run_watched(target, given, dtype, grad=calls % 2 == 1)
        calls += 1
        may = _permitted(target, given)
        named = dict(zip(target.spec.parameters[1:], given.args, strict=False))
        for block in memory:
            # What may have changed is changed in the copy from before as well; all else has to be equal.
            allowed = block.before.clone()
            for name in may:
                if _inside(named[name], block):
                    now, then = _over(named[name], block.block), _over(named[name], allowed)
                    if not torch.equal(now.contiguous().view(torch.uint8), then.contiguous().view(torch.uint8)):
                        written.add(name)
                    then.copy_(now)
            if not torch.equal(block.block, allowed):
                raise CheckFailed(_where(target, given, block, allowed), described(sample, dtype))
        if set(vars(given.obj)) != fields:
            new = ", ".join(sorted(set(vars(given.obj)) ^ fields))
            raise CheckFailed(f"changed the layer: obj.{new} appeared or vanished", described(sample, dtype))
        if all(named[name].numel() for name in may):
            permitted_at_all |= may
    never = sorted(permitted_at_all - written) if target.impl.mutates is not None else []
    if never:
        raise CheckFailed(
            f"declares that it writes to {', '.join(never)}, which no call did",
            details={"hint": f"leave {' and '.join(never)} out of mutates: failed calls may then be passed on"},
        )
    return {"calls": calls, "written": sorted(written)}


def _run_watched(target: Target, given: Sample, dtype: str, *, grad: bool) -> None:
    """Make the call, in either grad mode, and see that torch's settings survive it."""
    outside = TorchState.now()
    try:
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(grad)
        torch.rand(1)  # another state than the last call's, which a vendor that seeds would only set again
        before = TorchState.now()
        run(target, given, dtype)
        changed = before.changed()
    finally:
        outside.restore()
    if changed:
        raise CheckFailed(
            f"changed {' and '.join(changed)}, which the whole process shares",
            described(given, dtype),
            {
                "hint": "pass dtype= to torch.empty, take a torch.Generator of your own, use torch.no_grad() as a context"
            },
        )


def _inside(tensor: torch.Tensor, block: Memory) -> bool:
    return tensor.untyped_storage().data_ptr() == block.block.untyped_storage().data_ptr()


def _over(tensor: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    """The same view, of another block of bytes."""
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(block.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def _where(target: Target, given: Sample, block: Memory, allowed: torch.Tensor) -> str:
    """In words, which bytes were written to that should not have been."""
    changed = (block.block != allowed).nonzero().flatten()
    first, count = int(changed[0]), len(changed)
    named: dict[str, Any] = dict(zip(target.spec.parameters[1:], given.args, strict=False))
    named |= {f"obj.{name}": value for name, value in vars(given.obj).items()}
    tensors = {k: v for k, v in named.items() if isinstance(v, torch.Tensor) and v.numel() and _inside(v, block)}
    for name, tensor in tensors.items():
        marks = torch.zeros_like(block.block)
        view = torch.empty(0, dtype=torch.uint8, device=marks.device)
        size = tensor.element_size()
        view = view.set_(
            marks.untyped_storage(),
            tensor.storage_offset() * size,
            (*tensor.shape, size),
            (*(stride * size for stride in tensor.stride()), 1),
        )
        view.fill_(1)
        if bool(marks[changed].any()):
            declared = "declares no such write" if name not in target.spec.may_mutate else "may not in this call"
            if target.impl.mutates is not None and name in target.spec.may_mutate and name not in target.impl.mutates:
                declared = "does not declare it in mutates"
            return f"wrote to {name}, and {declared} ({int(marks[changed].sum())} bytes)"
    names = " and ".join(tensors) or "a tensor"
    side = "before the beginning of" if first < GUARD else "beyond the end of, or between the rows of,"
    return f"wrote {count} bytes {side} {names}"


def _aliases(target: Target, dtype: str) -> Figures:
    calls = 0
    for _, sample in samples_for(target, dtype):
        given, memory = copied(sample)
        results = run(target, given, dtype)
        calls += 1
        may = _permitted(target, given)
        named = dict(zip(target.spec.parameters[1:], given.args, strict=False))
        own = {named[name].untyped_storage().data_ptr() for name in may}
        seen: list[torch.Tensor] = []
        for index, result in enumerate(results):
            if not result.numel():
                continue
            pointer = result.untyped_storage().data_ptr()
            if pointer not in own and any(pointer == block.block.untyped_storage().data_ptr() for block in memory):
                raise CheckFailed(
                    f"result {index + 1} is memory of an argument that it may not write to in this call; "
                    "the caller keeps that argument, and the next layer would overwrite it",
                    described(sample, dtype),
                )
            if any(_overlap(result, other) for other in seen):
                raise CheckFailed("two results share memory", described(sample, dtype))
            seen.append(result)
    return {"calls": calls}


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors begin at the same place: slices of one projection lie side by side in one memory."""
    return one.data_ptr() == other.data_ptr()


def _kept(target: Target, dtype: str) -> Figures:
    """Each call is followed by one of the same shapes with other numbers, and by all later ones."""
    before: list[tuple[Sample, Results, list[torch.Tensor]]] = []
    other = dataclasses.replace(target, seed=target.seed + 1)
    pairs = zip(samples_for(target, dtype), samples_for(other, dtype), strict=False)
    for (family, sample), (_, second) in pairs:
        if family not in ("ordinary", "one_token", "interleaved"):
            continue
        for call in (sample, second):
            given, _ = copied(call)
            results = run(target, given, dtype)
            for first, kept, saved in before:
                if any(not torch.equal(a, b) for a, b in zip(kept, saved, strict=True)):
                    raise CheckFailed(
                        f"the results of an earlier call ({first.label}) were changed by this one: "
                        "each call has to return memory of its own",
                        described(call, dtype),
                    )
            before = [*before[-3:], (call, results, [result.clone() for result in results])]
    return {"inputs": len(before)}


def _same_residual(target: Target) -> Figures:
    if target.impl.mutates is None or target.impl.mutates:
        raise NotApplicable("only of an implementation that declares to mutate nothing: others may overwrite either")
    worst = Worst()
    for dtype in target.dtypes:
        for family, sample in samples_for(target, dtype):
            if family not in ("ordinary", "odd_sizes") or len(sample.args) < 2:
                continue
            same = dataclasses.replace(sample, label=f"x is residual, {sample.label}", args=(sample.args[0],) * 2)
            if target.verdict((same.obj, *same.args), same.kwargs) is None:
                given, _ = copied(same)
                compare(target.spec, dtype, same, run(target, given, dtype), worst)
    if not worst.calls:
        raise NotApplicable("its declared limits refuse every call with a residual")
    return worst.as_figures()
