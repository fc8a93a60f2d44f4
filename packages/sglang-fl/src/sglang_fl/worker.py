# SPDX-License-Identifier: Apache-2.0
"""In the worker, once the model is built: check that the seam is in effect, decide every layer, print and keep the report."""

from __future__ import annotations

import inspect
import logging
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

from fl_dispatch import Report, SeamError, default_manager, replace_aten
from sglang_fl.graphs import GraphModes, graph_modes
from sglang_fl.hooks import register
from sglang_fl.plugin import Installed, installed
from sglang_fl.versions import installed_version, tested_range

logger = logging.getLogger("sglang_fl")

_report: Report | None = None
_hooked = False
_dp_rank: int | None = None
_modes: GraphModes | None = None

_LOAD_MODEL = ("sglang.srt.model_executor.model_runner", "ModelRunner.load_model")


def around_scheduler_init(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """AROUND hook of ``Scheduler.__init__``: only now, in a process that will run a model, is its module worth importing."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    global _hooked, _dp_rank
    _dp_rank = _data_parallel_rank(original, args, kwargs)
    if not _hooked:
        _hooked = True
        register(*_LOAD_MODEL, after_load_model, HookType.AFTER)
        HookRegistry.apply_hooks()
    original(*args, **kwargs)
    if _report is None:
        raise SeamError(
            f"SGLang {installed_version()}: the scheduler was built but no model passed our check at {'.'.join(_LOAD_MODEL)}, so "
            f"it is not known what runs; sglang-fl was tested with {tested_range()}"
        )
    if _modes is not None:
        _modes.freeze(default_manager())


def after_load_model(result: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER hook of ``ModelRunner.load_model``. Raises SeamError or SelectionError, which stops the start-up."""
    here = installed()
    if here is None:
        raise SeamError("sglang-fl's hook ran in a process that never loaded the plug-in; reinstall sglang-fl")
    global _modes
    if _modes is None:  # a draft model, loaded later, is served as the settings say too
        device_type = str(runner.device)
        _modes = graph_modes(runner.server_args, device_type)
        compiled = _modes.compiled is not None
        default_manager().configure(device_type=device_type, captured=_modes.captured, compiled=compiled)
    settle_model(runner.model, here)
    default_manager().name_layers(runner.model.named_modules())
    # Here, in a process that runs a model, once its weights are loaded, and before anything is captured.
    replace_aten(here.config, rank=_rank())
    publish(here)


def settle_model(model: Any, here: Installed) -> None:
    """Decide every layer of the model now, so that the first request meets no decision and start-up meets every error."""
    problems: Counter[str] = Counter()
    for layer in model.modules():
        problem = here.binder.settle_layer(layer)
        if problem is not None:
            problems[problem] += 1
    if problems:
        listed = "; ".join(f"{text} ({count} layers)" for text, count in problems.items())
        raise SeamError(
            f"SGLang {installed_version()}: the seam {here.seam.target} is not in effect: {listed}. Another plug-in may replace "
            f"it (look for hooks on the same target), or this SGLang moved it; sglang-fl was tested with {tested_range()}"
        )


def publish(here: Installed) -> Report:
    """Print the table and start writing the report file."""
    global _report
    if _report is None:
        framework = f"sglang {installed_version()}"
        _report = Report(
            default_manager(),
            framework,
            here.config,
            rank=_rank(),
            dp_rank=_dp_rank,
            role="scheduler",
            left=here.binder.left,
        )
        _report.fact("seam", here.seam.target)
        _report.fact("aten", replace_aten(here.config).as_dict)
        _report.fact("graphs", _modes.describe() if _modes is not None else None)
    bypass = _bypass()
    if bypass is not None:
        _report.fact("bypassed_by", bypass)
        if here.config.policy.strict:
            raise SeamError(
                f"strict, and {bypass} makes SGLang go round the dispatcher; leave it out, or turn strict off"
            )
        logger.warning("%s makes SGLang go round the dispatcher; leave it out to have the table in effect", bypass)
    if not _report.rows():
        logger.warning("no layer of this model is served through fl-dispatch; the table says why")
    logger.info("\n%s", _report.table())
    _report.keep_writing()
    return _report


def _bypass() -> str | None:
    """The setting of SGLang that makes it run its own methods whatever the seam answered."""
    forced = os.environ.get("SGLANG_FORCE_FUSED_OP_BACKEND")
    return f"SGLANG_FORCE_FUSED_OP_BACKEND={forced}" if forced else None


def _data_parallel_rank(init: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """Which of several data-parallel groups this scheduler is of: up to 0.5.20 an argument, from 0.5.21 on in SGLang's context.
    None where there is one group alone, or where SGLang keeps it elsewhere: then the process id tells the reports apart.
    """
    arguments = inspect.signature(init).bind(*args, **kwargs).arguments
    if "dp_rank" in arguments:
        return arguments["dp_rank"]  # type: ignore[no-any-return]  # int or None, of SGLang
    try:
        from sglang.srt.runtime_context import get_parallel

        return get_parallel().dp_rank  # type: ignore[no-any-return]
    except (ImportError, AttributeError, RuntimeError):
        return None


def _rank() -> int:
    """In the group: tensor-parallel size times pipeline rank, plus tensor-parallel rank."""
    import torch.distributed

    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
