# SPDX-License-Identifier: Apache-2.0
"""In the worker: fingerprint before the model is built, every layer decided once it is loaded, the graphs checked after warm-up."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from fl_dispatch import Report, SeamError, default_manager, replace_aten
from vllm_fl_adapter.fingerprint import KEY, fingerprint
from vllm_fl_adapter.graphs import CompiledModule, compiled_roots, describe
from vllm_fl_adapter.plugin import Installed, installed
from vllm_fl_adapter.versions import installed_version, tested_range

logger = logging.getLogger("vllm.fl_adapter")

EAGER_COUNTS = "calls (eager mode)"
COMPILED_COUNTS = "graph_sites: bound sites in compiled graphs (compiled mode); calls: those outside of graphs"


def hook_workers() -> None:
    """Have every worker that vLLM builds in this process report to us.

    Raises:
        SeamError: this vLLM builds its workers in another way.
    """
    try:
        from vllm.v1.worker.worker_base import WorkerWrapperBase

        # Not init_worker: in a spawned worker that is what loads the plug-ins.
        original = WorkerWrapperBase.init_device
    except (ImportError, AttributeError) as error:
        raise SeamError(
            f"vLLM {installed_version()} has no WorkerWrapperBase.init_device ({error}); vllm-fl-adapter was tested with "
            f"{tested_range()}; install one of these, or a newer vllm-fl-adapter"
        ) from error
    if hasattr(original, "fl_original"):
        return

    @functools.wraps(original)
    def init_device(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        attach(self.worker)
        return result

    init_device.fl_original = original  # type: ignore[attr-defined]  # how a second call sees the first
    WorkerWrapperBase.init_device = init_device


def attach(worker: Any) -> None:
    """Follow one worker through its start-up."""
    here = installed()
    if here is None:
        raise SeamError(
            "vllm-fl-adapter's hook ran in a process that never loaded the plug-in; reinstall vllm-fl-adapter"
        )
    start = WorkerStart(worker, here)
    for method, before, after in (
        ("load_model", start.before_load, start.after_load),
        ("compile_or_warm_up_model", None, start.after_warm_up),
        ("shutdown", start.before_shutdown, None),
    ):
        if not hasattr(worker, method):
            raise SeamError(
                f"vLLM {installed_version()}: {type(worker).__qualname__} has no {method}(); vllm-fl-adapter was tested with "
                f"{tested_range()}"
            )
        setattr(worker, method, _around(getattr(worker, method), before, after))


def _around(
    original: Callable[..., Any], before: Callable[[], None] | None, after: Callable[[], None] | None
) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before()
        result = original(*args, **kwargs)
        if after is not None:
            after()
        return result

    return wrapped


class WorkerStart:
    """One worker's way from its construction to its first request.

    Args:
        worker: vLLM's worker.
        here: the plug-in in this process.
    """

    def __init__(self, worker: Any, here: Installed) -> None:
        self._worker = worker
        self._vllm_config = worker.vllm_config
        self._here = here
        self._manager = default_manager()
        self._compiled: list[CompiledModule] = []
        self._report: Report | None = None

    @property
    def _mode(self) -> str:
        return str(self._vllm_config.compilation_config.mode.name)

    def before_load(self) -> None:
        """Make vLLM's compile cache depend on what we are about to decide."""
        self._manager.configure(device_type=str(self._vllm_config.device_config.device_type))
        self._manager.configure(captured=self._captures())
        self._here.ir_provider.bind(self._vllm_config)
        value = fingerprint(self._manager, self._here.config)
        config = self._vllm_config
        if not isinstance(config.additional_config, dict):
            raise SeamError(
                f"additional_config is a {type(config.additional_config).__name__} and no dictionary, so vllm-fl-adapter cannot "
                "make vLLM's compile cache depend on the selected implementations"
            )
        # A dictionary of its own: in a single process this one belongs to the caller of LLM().
        config.additional_config = {**config.additional_config, KEY: value}

    def after_load(self) -> None:
        """Decide every layer now, so that the first request meets no decision and start-up meets every error."""
        binder = self._here.binder
        models = _models(self._worker)
        roots = compiled_roots(models, self._mode)
        in_graph = {id(module) for root in roots for module in root.modules()}
        known = {id(module) for model in models for module in model.modules()}
        for layer in binder.waiting():
            unknown = id(layer) not in known and self._mode != "NONE"
            binder.settle(layer, compiled=id(layer) in in_graph or unknown)
        for model in models:
            binder.note_left(model.modules())
            self._manager.name_layers(model.named_modules())
        self._compiled = [CompiledModule(root, tuple(binder.sites_of(root.modules()))) for root in roots]
        # Now that the weights are loaded, and before vLLM's profiling run, compilation and capture.
        replace_aten(self._here.config, rank=int(self._worker.rank))
        self._publish()

    def after_warm_up(self) -> None:
        """The graphs exist now, if they are made at start-up at all: see that they hold what was decided."""
        for compiled in self._compiled:
            compiled.count_cached()
            skipped = {f"{site.op_name} ({site.label})" for site in compiled.skipped()}
            if skipped:
                logger.warning("%s was compiled without the dispatched %s", compiled.name, ", ".join(sorted(skipped)))
        if self._report is not None and self._compiled:
            self._report.fact("graphs", describe(self._compiled))
        if any(site.graphs for compiled in self._compiled for site in compiled.sites) or self._captures():
            self._manager.freeze("vLLM's compiled or captured graph")

    def before_shutdown(self) -> None:
        """The last word of the report: soon the layers are gone that it tells of."""
        if self._report is not None:
            self._report.stop()

    def _captures(self) -> bool:
        """Whether vLLM captures device graphs."""
        mode = getattr(self._vllm_config.compilation_config, "cudagraph_mode", None)
        return mode is not None and mode.name != "NONE" and self._manager.device_type != "cpu"

    def _publish(self) -> None:
        """Print the table and start writing the report file."""
        report = Report(
            self._manager,
            f"vllm {installed_version()}",
            self._here.config,
            rank=int(self._worker.rank),
            role="worker",
            left=self._here.binder.left,
        )
        report.fact("platform", _platform())
        report.fact("aten", replace_aten(self._here.config).as_dict)
        report.fact("compilation", self._mode)
        report.fact("fingerprint", self._vllm_config.additional_config[KEY])
        if self._compiled:
            report.fact("counts", COMPILED_COUNTS)
            report.fact("graphs", describe(self._compiled))
        else:
            report.fact("counts", EAGER_COUNTS)
        if not report.rows():
            logger.warning("no layer of this model is served through fl-dispatch; the table says why")
        logger.info("\n%s", report.table())
        report.keep_writing()
        self._report = report


def _models(worker: Any) -> list[Any]:
    """The model, and that of a speculative drafter."""
    from torch.nn import Module

    models = [worker.get_model()]
    for name in ("drafter", "speculator"):
        drafted = getattr(getattr(worker.model_runner, name, None), "model", None)
        if isinstance(drafted, Module):
            models.append(drafted)
    return models


def _platform() -> str:
    from vllm.platforms import current_platform

    kind = type(current_platform)
    return f"{kind.__module__}.{kind.__qualname__}"
