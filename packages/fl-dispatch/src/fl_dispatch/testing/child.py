# SPDX-License-Identifier: Apache-2.0
"""What the check ``processes`` does in a spawned process, and in a fork of it that precedes device initialisation."""

from __future__ import annotations

import os
import pickle
import select
import signal
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch

from fl_dispatch.ops.spec import Sample
from fl_dispatch.testing.calls import Layer, as_results, compiled, copied, run, samples, samples_for
from fl_dispatch.testing.case import CheckFailed, Target
from fl_dispatch.testing.vendors import registered, targets

#: Seconds that a process may take. Longer is a hang.
TIMEOUT = 120.0

#: Calls of each implementation.
CALLS = 4

#: Name of a target to the results of its calls, or what went wrong.
Answers = dict[str, "list[Any] | str"]


def spawned(connection: Any, vendor: str, device: str | None, seed: int) -> None:
    """The body of the spawned process: load the vendor, let a fork use it, then use it here; send both answers."""
    answers: dict[str, Answers | str]
    try:
        answers = _both(vendor, device, seed)
    except BaseException as error:  # noqa: BLE001  (whatever a vendor raises is the answer)
        answers = dict.fromkeys(("fork", "spawn"), f"{type(error).__name__}: {error}")
    # Not send(): for tensors that hands over memory of this process, which is about to end.
    connection.send_bytes(pickle.dumps(answers))
    connection.close()


def _both(vendor: str, device: str | None, seed: int) -> dict[str, Answers | str]:
    registry = registered(vendor)[0]  # as a launcher does it: vendors are loaded, nothing is asked of a device
    touched = _initialised(device)
    answers: dict[str, Answers | str] = {}
    if touched is not None:
        answers["fork"] = touched
    elif hasattr(os, "fork"):
        answers["fork"] = _in_a_fork(lambda: _use(vendor, registry, device, seed))
    answers["trace"] = _trace(vendor, registry, device, seed)  # before anything was called here
    answers["spawn"] = _use(vendor, registry, device, seed)
    return answers


def _initialised(device: str | None) -> str | None:
    if device in (None, "cpu"):
        return None
    asked = getattr(torch.get_device_module(device), "is_initialized", None)
    if asked is not None and asked():
        return f"importing and registering it initialised {device}; after that no fork can use the device"
    return None


def _in_a_fork(work: Callable[[], Answers]) -> Answers | str:
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            answer: Answers | str = work()
        except BaseException as error:  # noqa: BLE001  (whatever a vendor raises is the answer)
            answer = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        with os.fdopen(writer, "wb") as stream:
            pickle.dump(answer, stream)
        os._exit(0)
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], TIMEOUT / 2)
    if not ready:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        return f"it hung: no answer in {TIMEOUT / 2:.0f} s"
    with os.fdopen(reader, "rb") as stream:
        content = stream.read()
    _, status = os.waitpid(process, 0)
    if not content:
        return f"the process ended with status {os.waitstatus_to_exitcode(status)} and no answer"
    answers: Answers | str = pickle.loads(content)
    return answers


def calls(target: Target) -> list[tuple[str, Sample]]:
    """(dtype, sample) of the calls that are made in every process."""
    dtype = target.dtypes[0]
    found = [sample for family, sample in samples_for(target, dtype) if family in ("ordinary", "one_token")]
    return [(dtype, sample) for sample in found[:CALLS]]


def first_call(target: Target) -> tuple[str, Sample] | None:
    """(dtype, sample) of the call that is traced; chosen by what is declared, since asking the implementation is a call."""
    for dtype in target.dtypes[:1]:
        for family, sample in samples(target.spec, dtype, target.device, target.seed):
            if (
                family in ("ordinary", "one_token")
                and target.verdict((sample.obj, *sample.args), sample.kwargs) is None
            ):
                return dtype, sample
    return None


def _trace(vendor: str, registry: Any, device: str | None, seed: int) -> Answers:
    """The first call of every traceable implementation, inside of a trace: engines that compile make no other before."""
    answers: Answers = {}
    for target in targets(vendor, registry, device=device, seed=seed):
        found = None if not target.impl.traceable or target.unavailable is not None else first_call(target)
        if found is None:
            continue
        _, sample = found
        fn = compiled(target.impl.fn, Layer(sample.obj), "eager")
        given, _ = copied(sample)
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's own, about itself
                answers[target.name] = [tuple(result.cpu() for result in as_results(fn(*given.args, **given.kwargs)))]
        except Exception as error:  # noqa: BLE001  (whatever an implementation raises in a trace is the answer)
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            answers[target.name] = "\n".join([f"torch.compile raised {type(error).__name__}: {lines[0]}", *lines[1:]])
    return answers


def _use(vendor: str, registry: Any, device: str | None, seed: int) -> Answers:
    """A few calls of every implementation, with their results in host memory."""
    answers: Answers = {}
    for target in targets(vendor, registry, device=device, seed=seed):
        if target.unavailable is not None:
            answers[target.name] = f"it is not available: {target.unavailable}"
        elif target.dtypes:
            try:
                with torch.no_grad():
                    answers[target.name] = [
                        tuple(result.cpu() for result in run(target, copied(sample)[0], dtype))
                        for dtype, sample in calls(target)
                    ]
            except CheckFailed as error:
                answers[target.name] = f"{error.problem}, with input {error.input}"
    return answers
