# SPDX-License-Identifier: Apache-2.0
"""A plug-in for SGLang's scheduler and vLLM's worker that lets their own methods and the bound layers take turns within one engine.

Every few steps of decoding all bound layers run the framework's own method, then what its adapter bound, then its own again, and
backwards. Steps that are milliseconds apart meet the same host, engines that are seconds apart do not. A line for each turn goes
to the file that ``VARIABLE`` names:

    {"generation": 3, "turn": 7, "requests": 64, "way": "bound", "layers": 98, "us": 16512.3}

``us`` is the time from the start of a step to that of the next, the mean of a turn's steps but the first ones. With the variable
``TIMED`` every call of a bound layer is timed as well, whichever way it goes, and the line tells for each operator its calls a
step and the microseconds that the host is in one:

    "operators": {"rms_norm": [65.0, 21.4], "rotary_embedding": [32.0, 19.8]}

``us`` then holds what the timing costs. ``steps.py`` starts such engines and reads the file.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "FL_ALTERNATING_FILE"
TIMED = "FL_ALTERNATING_TIMED"
#: Turns of a cycle; the next cycle has them backwards. "again" is "native" once more: what cannot be told apart.
CYCLE = ("native", "bound", "again")
STEPS = 6
#: Steps of a turn that do not count: the device still works on the turn before.
SETTLING = 2


class Alternation:
    """Which way the layers of this process go, and how long the steps take.

    Args:
        file: takes the lines, whenever a prefill comes: never between two measured steps.
        timed: time the calls of the layers too.
    """

    def __init__(self, file: Path, *, timed: bool = False) -> None:
        self._file = file
        self._timed = timed
        #: Operator to calls and seconds in them, since the steps of the turn count.
        self._spent: dict[str, list[float]] = {}
        self._layers: list[tuple[dict[str, Any], Any, Any]] = []
        self._lines: list[dict[str, Any]] = []
        self._generation = 0
        self._begin()

    def _begin(self) -> None:
        self._step = 0
        self._requests = 0
        self._started = 0.0
        self._times: list[float] = []

    def bound(self, layer: Any, native: Any, forward: Any, operator: str) -> None:
        """Note a layer with the framework's own method, the one that its adapter bound, and the operator that this runs."""
        if self._timed:
            spent = self._spent.setdefault(operator, [0, 0.0])
            native, forward = timed(native, spent), timed(forward, spent)
        self._layers.append((vars(layer), native, forward))

    def run_batch(self, original: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """AROUND hook of SGLang's ``Scheduler.run_batch``."""
        if batch.forward_mode.is_decode():
            self.decode(len(batch.reqs))
        else:
            self.prefill()
        return original(scheduler, batch, *args, **kwargs)

    def execute_model(self, scheduled: Any) -> None:
        """Before vLLM's ``WorkerWrapperBase.execute_model``: in a step of decoding every request has one token."""
        tokens = scheduled.num_scheduled_tokens
        if tokens and not scheduled.scheduled_new_reqs and set(tokens.values()) == {1}:
            self.decode(len(tokens))
        else:
            self.prefill()

    def decode(self, requests: int) -> None:
        """A step of decoding begins."""
        now = time.perf_counter()
        if requests != self._requests:  # some are still to come, or the first are done
            self._begin()
            self._requests = requests
        elif self._step:
            self._times.append(now - self._started)
        if self._step % STEPS == 0:
            self._turn(self._step // STEPS)
            now = time.perf_counter()
        elif self._step % STEPS == SETTLING:
            for spent in self._spent.values():
                spent[:] = 0, 0.0
        self._started = now
        self._step += 1

    def _turn(self, turn: int) -> None:
        if len(self._times) == STEPS:
            counted = self._times[SETTLING:]
            line: dict[str, Any] = {
                "generation": self._generation,
                "turn": turn - 1,
                "requests": self._requests,
                "way": way(turn - 1),
                "layers": len(self._layers),
                "us": round(sum(counted) / len(counted) * 1e6, 2),
            }
            if self._timed:
                line["operators"] = {
                    operator: [calls / len(counted), round(seconds / calls * 1e6, 3)]
                    for operator, (calls, seconds) in self._spent.items()
                    if calls
                }
            self._lines.append(line)
        self._times = []
        self._go(way(turn))

    def _go(self, which: str) -> None:
        # Into __dict__: a module's __setattr__ looks for parameters first.
        for fields, native, forward in self._layers:
            fields["_forward_method"] = forward if which == "bound" else native

    def prefill(self) -> None:
        """Something else than a step of decoding begins."""
        if self._step:
            self._generation += 1
        self._begin()
        if self._lines:
            with self._file.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in self._lines)
            self._lines = []


def timed(method: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    """A layer's method that adds its calls and the seconds in them to ``spent``."""
    clock = time.perf_counter

    def call(*args: Any, **kwargs: Any) -> Any:
        started = clock()
        result = method(*args, **kwargs)
        spent[1] += clock() - started
        spent[0] += 1
        return result

    return call


def way(turn: int) -> str:
    """What a turn of a generation runs."""
    cycle, place = divmod(turn, len(CYCLE))
    return CYCLE[place] if cycle % 2 == 0 else CYCLE[-1 - place]


def register() -> None:
    """Entry point of ``sglang.srt.plugins``."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from sglang_fl import layers

    if VARIABLE not in os.environ:
        return
    alternation, bind = Alternation(Path(os.environ[VARIABLE]), timed=TIMED in os.environ), layers.bind_layer

    def noting(manager: Any, config: Any, layer: Any, bridge: Any, native: Any, mode: Any) -> Any:
        forward, left = bind(manager, config, layer, bridge, native, mode)
        if left is None:
            alternation.bound(layer, native, forward, bridge.operator(layer))
        return forward, left

    layers.bind_layer = noting
    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.run_batch", alternation.run_batch, HookType.AROUND)


def register_in_vllm() -> None:
    """Entry point of ``vllm.general_plugins``."""
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    from vllm_fl_adapter.layers import LayerBinder
    from vllm_fl_adapter.replacements import Replacement

    if VARIABLE not in os.environ:
        return
    alternation = Alternation(Path(os.environ[VARIABLE]), timed=TIMED in os.environ)
    settle, execute_model = LayerBinder.settle, WorkerWrapperBase.execute_model

    def noting(binder: Any, layer: Any, **kwargs: Any) -> Any:
        native = vars(layer).get("fl_native")  # it is gone once the layer is bound
        waiting = layer in binder.waiting()
        forward = settle(binder, layer, **kwargs)
        if waiting and isinstance(layer, Replacement):  # else it was given back
            alternation.bound(layer, native, forward, layer.fl_bridge.operator(layer))
        return forward

    @functools.wraps(execute_model)
    def with_turns(wrapper: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        alternation.execute_model(scheduler_output)
        return execute_model(wrapper, scheduler_output, *args, **kwargs)

    LayerBinder.settle = noting
    WorkerWrapperBase.execute_model = with_turns
