# SPDX-License-Identifier: Apache-2.0
"""Calling an implementation with a sample: copies that show what was written, results as a tuple."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch

from fl_dispatch.errors import NotSupported
from fl_dispatch.limits import describe_arguments
from fl_dispatch.ops.spec import OpSpec, Sample
from fl_dispatch.testing.case import CheckFailed, Target
from fl_dispatch.testing.families import family_of, further_samples

#: Bytes before and after each tensor's memory. A multiple of any alignment that a kernel asks for.
GUARD = 1024
#: What the guard regions hold: a NaN in every floating point dtype, so that a read beyond the end shows as well.
_FILL = 0xFF
#: Operators times dtypes whose samples are kept at a time.
_KEPT_AT_MOST = 6

Results = tuple[torch.Tensor, ...]


class Layer(torch.nn.Module):
    """The fields of ``obj`` as frameworks keep them."""

    def __init__(self, fields: SimpleNamespace) -> None:
        super().__init__()
        for name, value in vars(fields).items():
            if isinstance(value, torch.Tensor):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)


def compiled(fn: Callable[..., Any], layer: Layer, backend: Any) -> Callable[..., Any]:
    """The function under ``torch.compile`` as one graph, for calls without the layer."""

    # A function, and no functools.partial, which Dynamo calls without looking into it.
    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(layer, *args, **kwargs)

    return torch.compile(call, fullgraph=True, backend=backend)


def run_compiled(graph: Callable[..., Any], sample: Sample, dtype: str) -> Results:
    """The results of what ``compiled`` gave for a copied sample; what it raises is a failed check."""
    # Each in a buffer of its own: for inputs that share one and are written to, torch.compile fixes the size of the buffer
    # and fails at other token counts (torch 2.11), whatever the operator. In a model's graph they are no inputs.
    arguments = [value.clone() if isinstance(value, torch.Tensor) else value for value in sample.args]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, about itself
            return as_results(graph(*arguments, **sample.kwargs))
    except Exception as error:
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        raise CheckFailed(
            f"torch.compile raised {type(error).__name__}: {first}",
            described(sample, dtype),
            {
                "hint": "without traceable=True and with reads declared, it becomes an opaque operator that is not traced"
            },
        ) from error


Labelled = tuple[tuple[str, Sample], ...]

_kept: dict[tuple[Any, ...], Labelled] = {}


def samples(spec: OpSpec, dtype: str, device: str, seed: int) -> Labelled:
    """(family, sample) of every call the kit makes in one dtype. They are kept: give an implementation copies only."""
    if spec.samples is None:
        return ()
    key = (spec.name, spec.samples, dtype, device, seed)
    if key not in _kept:
        while len(_kept) >= _KEPT_AT_MOST:
            del _kept[next(iter(_kept))]
        found = [(family_of(spec, sample), sample) for sample in spec.samples(getattr(torch, dtype), device, seed)]
        _kept[key] = (*found, *further_samples(spec, dtype, device, seed, found))
    return _kept[key]


_refusals: dict[tuple[Any, ...], tuple[str | None, ...]] = {}


def judged_samples(target: Target, dtype: str) -> Iterator[tuple[str, Sample, str | None]]:
    """(family, sample, refusal): None where the implementation takes the call, else which limit is against it.

    ``NotSupported`` is a refusal too. Whether it is raised shows in a call only, so each is tried once beforehand.
    """
    found = samples(target.spec, dtype, target.device, target.seed)
    key = (target.vendor, target.name, dtype, target.device, target.seed)
    if key not in _refusals:
        _refusals[key] = tuple(_refusal(target, sample) for _, sample in found)
    for (family, sample), refusal in zip(found, _refusals[key], strict=True):
        yield family, sample, refusal


def _refusal(target: Target, sample: Sample) -> str | None:
    reason = target.verdict((sample.obj, *sample.args), sample.kwargs)
    if reason is None:
        given, _ = copied(sample)
        try:
            target.impl.fn(given.obj, *given.args, **given.kwargs)
        except NotSupported as refusal:
            reason = f"NotSupported: {refusal}"
        except Exception:  # noqa: BLE001  (a trial: whatever else is wrong with it is for the checks to find)
            return None
    return reason


def samples_for(target: Target, dtype: str) -> Iterator[tuple[str, Sample]]:
    """Those whose calls the implementation takes."""
    for family, sample, refusal in judged_samples(target, dtype):
        if refusal is None:
            yield family, sample


@dataclass(frozen=True)
class Memory:
    """One block of memory that a copied sample lies in, guards included, and what was in it before."""

    block: torch.Tensor
    before: torch.Tensor

    @classmethod
    def holding(cls, values: torch.Tensor) -> Memory:
        """A block with the bytes ``values`` between its guards."""
        block = torch.full((len(values) + 2 * GUARD,), _FILL, dtype=torch.uint8, device=values.device)
        block[GUARD : GUARD + len(values)] = values
        return cls(block, block.clone())


def copied(sample: Sample) -> tuple[Sample, list[Memory]]:
    """The sample in memory of its own, with the layout, the gaps and the sharing of memory that it had."""
    blocks: dict[int, Memory] = {}

    def copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        storage = value.untyped_storage()
        key = storage.data_ptr() or id(storage)
        if key not in blocks:
            values = torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage)
            blocks[key] = Memory.holding(values)
        offset = value.storage_offset() + GUARD // value.element_size()
        empty = torch.empty(0, dtype=value.dtype, device=value.device)
        shared = blocks[key].block.untyped_storage()
        return empty.set_(shared, offset, value.shape, value.stride())

    fields = vars(sample.obj)
    obj = SimpleNamespace(**{name: copy(value) for name, value in fields.items()})
    copy_ = replace(sample, obj=obj, args=tuple(copy(value) for value in sample.args))
    return copy_, list(blocks.values())


def described(sample: Sample, dtype: str) -> str:
    """The sample for messages."""
    arguments = describe_arguments(sample.args, sample.kwargs)
    fields = ", ".join(f"{name}={describe_arguments((value,), {})}" for name, value in sorted(vars(sample.obj).items()))
    return f"{sample.label} ({dtype}): {arguments}" + (f"; obj: {fields}" if fields else "")


def as_results(result: Any) -> Results:
    """What an operator returned, always as a tuple."""
    return result if isinstance(result, tuple) else (result,)


def run(target: Target, sample: Sample, dtype: str, like: Sample | None = None) -> Results:
    """The results of the implementation; what it raises is a failed check, of a sample described as ``like``."""
    try:
        results = as_results(target.impl.fn(sample.obj, *sample.args, **sample.kwargs))
        if target.device != "cpu":
            torch.get_device_module(target.device).synchronize()  # a kernel's fault belongs to this call
    except Exception as error:
        raise CheckFailed(
            f"raised {type(error).__name__}: {error}",
            described(like or sample, dtype),
            {"hint": "declare in dtypes, supports or supports_layer what it cannot take; dispatch then goes elsewhere"},
        ) from error
    return results


def poison(sample: Sample) -> None:
    """Fill and free memory of the results' size, so that what was not written holds no right answer by chance."""
    for value in sample.args[:1]:
        torch.full((value.numel(),), float("nan"), dtype=value.dtype, device=value.device)
