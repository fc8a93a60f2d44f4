# SPDX-License-Identifier: Apache-2.0
"""The calls that are measured: an implementation as an adapter binds it, and a framework's layers as the framework calls them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch

from fl_dispatch.manager import OpManager
from fl_dispatch.native import FrameworkLayer
from fl_dispatch.ops.spec import Sample
from fl_dispatch.policy import SelectionPolicy
from fl_dispatch.registry import OpRegistry
from fl_dispatch.site import Site
from fl_dispatch.tune.timing import Call
from fl_dispatch.tune.workloads import ModelShape
from fl_dispatch.types import OpImpl

#: Of a framework, each with weights and a site of its own, as a model has them; all of a model share one that rotates.
_LAYERS = {"rotary_embedding": 1}
_MOST_LAYERS = 8

#: ``(op_name, sizes, dtype, device) -> FrameworkLayer``; raises where there is none.
Layers = Callable[..., FrameworkLayer]


def build_layers(
    layers: Layers, op_name: str, dtype: str, shape: ModelShape, device: str
) -> list[FrameworkLayer] | Exception:
    """A framework's layers for one operator, or why there are none."""
    count = _LAYERS.get(op_name, _MOST_LAYERS)
    try:
        with torch.inference_mode(False):  # their weights are ordinary ones
            built = [layers(op_name, asdict(shape), getattr(torch, dtype), device) for _ in range(count)]
        if not isinstance(built[0], FrameworkLayer):
            raise TypeError(
                f"{layers.__module__} gave a {type(built[0]).__name__} and no FrameworkLayer; update the adapter"
            )
        return built
    except Exception as error:  # noqa: BLE001  (of a framework: the error is the result)
        return error


def bound_calls(
    registry: OpRegistry,
    impl: OpImpl,
    samples: Sequence[Sample],
    device: str,
    dtype: str,
    layers: Sequence[FrameworkLayer] | None,
) -> list[Call]:
    """As an adapter binds it: with the checks of single calls that it needs, and of a framework's layer with the translation of
    its arguments. Raises with the reason it is not able.
    """
    policy = SelectionPolicy(prefer=(f"impl:{impl.impl_id}",), strict=True)
    manager = OpManager(registry, policy, device_type=device)
    bind = functools.partial(manager.bind, impl.op_name, device_type=device, label="tune")
    if layers is None:
        site = bind(samples[0].obj, dtype=dtype)
        return [functools.partial(site.fn, sample.obj, *sample.args) for sample in samples]
    bind(layers[0].layer, dtype=dtype)  # adapters do not name one; here what does not take it says so at once
    sites = [bind(layer.layer) for layer in layers]
    calls = layer_calls(layers, samples, [layer.forward(site) for layer, site in zip(layers, sites, strict=True)])
    handed_over(sites[0], calls[0])
    return calls


def handed_over(site: Site, call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, by position and by name, with which a call of a bound layer comes by its site.

    Raises:
        RuntimeError: it does not. The framework's time would be measured under an implementation's name.
    """
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    function = site.fn

    def noting(*args: Any, **kwargs: Any) -> Any:
        seen.append((args, kwargs))
        return function(*args, **kwargs)

    site.fn = noting
    try:
        call()
    finally:
        site.fn = function
    if not seen:
        why = "; ".join(to for _, to in site.fallbacks) or "its adapter calls something else"
        raise RuntimeError(f"the layer does not come by the operator with these arguments: {why}")
    return seen[0]


def layer_calls(
    layers: Sequence[FrameworkLayer],
    samples: Sequence[Sample],
    methods: Sequence[Callable[..., Any]],
) -> list[Call]:
    """A method of each of a framework's layers, which take the samples in turn; of more layers than samples some take the same."""
    pairs = zip(
        itertools.cycle(zip(layers, methods, strict=True)),
        itertools.cycle(samples),
        range(max(len(layers), len(samples))),
        strict=False,
    )
    return [functools.partial(run, layer.layer, *layer.arguments(*sample.args)) for (layer, run), sample, _ in pairs]
