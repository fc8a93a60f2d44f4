# SPDX-License-Identifier: Apache-2.0
"""In a diffusion worker: hooks, and once the pipeline is there, a check of every layer, the table and the report."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from fl_dispatch import FLDispatchError, Report, SeamError, default_manager, replace_aten
from sglang_fl.diffusion.backend import Started, started, without_platform
from sglang_fl.diffusion.forwards import DISPATCH
from sglang_fl.hooks import register as register_hook
from sglang_fl.layers import LayerBinder
from sglang_fl.seam import find_seam
from sglang_fl.versions import installed_version

logger = logging.getLogger("sglang_fl")

#: Where a worker has built its device and its pipeline.
_INIT = ("sglang.multimodal_gen.runtime.managers.gpu_worker", "GPUWorker.init_device_and_model")
TARGET = ".".join(_INIT)

_report: Report | None = None
_binder: LayerBinder | None = None
_hooked = False


def register() -> None:
    """Register our hooks: on our own platform in a worker alone, as launcher and HTTP server run no model.

    On a platform that is not ours SGLang only calls this through a distribution without a platform. It then logs and ignores
    what plug-ins raise, so a fault ends the process; on ours it stops the start by itself.
    """
    global _hooked
    if _hooked:
        return
    from sglang.multimodal_gen.runtime import platforms

    if type(platforms.current_platform).__module__.startswith("sglang_fl."):
        here = started()
        if here is not None:
            _register(here)
        return
    try:
        _register(without_platform(platforms.current_platform))
    except FLDispatchError as error:
        raise SystemExit(f"sglang-fl refuses to start: {error}") from error


def _register(here: Started) -> None:
    global _binder, _hooked
    from sglang.multimodal_gen.runtime.platforms.plugins import HookRegistry, HookType

    if not here.registered:
        register_hook(*DISPATCH, here.forwards.around_dispatch, HookType.AROUND, HookRegistry)
    register_hook(*_INIT, after_init, HookType.AFTER, HookRegistry)
    # Text encoders are made of language-model layers as well. These dispatch elsewhere: at the seam that SGLang's other
    # runtime has, which only the hooks of this one reach here.
    seam = find_seam()
    _binder = LayerBinder(default_manager(), here.config, seam)
    register_hook(seam.module, f"{seam.owner}.{seam.method}", _around_seam, HookType.AROUND, HookRegistry)
    _hooked = True


def _around_seam(original: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
    """AROUND hook of the language models' seam."""
    here = started()
    if _binder is None or here is None or here.mode is not None:
        return original(layer, *args, **kwargs)
    return _binder.around_seam(original, layer, *args, **kwargs)


def after_init(result: Any, worker: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER hook of ``GPUWorker.init_device_and_model``. Raises SeamError or SelectionError, which stops the start-up."""
    here = started()
    if here is None:
        raise SeamError(
            "sglang-fl's diffusion hook ran in a process where its platform was not initialised; reinstall it"
        )
    here.mode = _compiling(worker.server_args)
    if here.mode is not None:
        if here.config.policy.strict:
            raise SeamError(f"strict, and {here.mode}; leave it out, or turn strict off")
        logger.warning("sglang-fl: %s: every layer stays with SGLang", here.mode)
    here.captured_by = _capturing(worker.server_args) if here.device_type != "cpu" else None
    default_manager().configure(captured=here.captured_by is not None)
    settle(worker.pipeline, here)
    replace_aten(here.config, rank=worker.rank)
    publish(here, worker.rank)
    if here.captured_by is not None:
        default_manager().freeze(f"a graph that SGLang captures ({here.captured_by})")


def _compiling(server_args: Any) -> str | None:
    """torch.compile was not tried on the layers as we bind them."""
    if getattr(server_args, "enable_torch_compile", False):
        return "--enable-torch-compile compiles SGLang's own methods"
    return None


def _capturing(server_args: Any) -> str | None:
    """The setting by which device graphs may be captured, at warm-up or by a request: SGLang's own, or that of a pipeline."""
    for settings in (server_args, getattr(server_args, "pipeline_config", None)):
        for name in dir(settings):
            if name.startswith("enable_") and name.endswith("cuda_graph") and getattr(settings, name):
                return name
    return None


def settle(pipeline: Any, here: Started) -> None:
    """Decide every layer of every component now, before the first request and before anything is compiled.

    Raises:
        SeamError: a layer runs what nobody registered.
    """
    problems: Counter[str] = Counter()
    for layer in _layers(pipeline):
        problem = here.forwards.settle_layer(layer)
        if problem is None and _binder is not None and here.mode is None:
            problem = _binder.settle_layer(layer)
        if problem is not None:
            problems[problem] += 1
    if problems:
        listed = "; ".join(f"{text} ({count} layers)" for text, count in problems.items())
        raise SeamError(
            f"SGLang {installed_version()}: our operators are not in effect: {listed}. Another plug-in may replace them (look "
            f"for others at {here.seam}), or this SGLang looks them up elsewhere"
        )


def _layers(pipeline: Any) -> Iterator[Any]:
    from torch import nn

    for component in pipeline.modules.values():
        if isinstance(component, nn.Module):
            yield from component.modules()


def publish_once(here: Started) -> None:
    """Where no hook did it: the report, from the first layer that is called on."""
    if _report is None:
        import torch.distributed

        publish(here, torch.distributed.get_rank() if torch.distributed.is_initialized() else 0)


def publish(here: Started, rank: int) -> Report:
    """Print the table and start writing the report file."""
    global _report
    if _report is None:
        _report = Report(
            default_manager(),
            f"sglang {installed_version()} diffusion",
            here.config,
            rank=rank,
            role="diffusion worker",
            left=lambda: [*here.forwards.left(), *(_binder.left() if _binder is not None else [])],
        )
        _report.fact("seam", here.seam)
        if here.registered:
            _report.fact("registered", here.registered)
        _report.fact("graphs", lambda: {"captured_by": here.captured_by})
        _report.fact("aten", replace_aten(here.config).as_dict)
    if not _report.rows():
        logger.warning("no layer of this pipeline is served through fl-dispatch; the table says why")
    logger.info("\n%s", _report.table())
    _report.keep_writing()
    return _report
