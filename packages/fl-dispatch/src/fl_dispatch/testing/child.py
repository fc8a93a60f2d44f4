# SPDX-License-Identifier: Apache-2.0
"""What the check ``processes`` does in a spawned process, and in a fork of it that precedes device initialisation."""

from __future__ import annotations

import json
import os
import select
import signal
import traceback
from collections.abc import Callable
from typing import Any

#: Seconds that a process may take. Longer is a hang.
TIMEOUT = 120.0

#: Name of a target to None where all was well, else what went wrong.
Verdicts = dict[str, str | None]


def spawned(connection: Any, vendor: str, device: str | None, seed: int) -> None:
    """The body of the spawned process: load the vendor, let a fork use it, then use it here; send both verdicts."""
    try:
        connection.send(_both(vendor, device, seed))
    except BaseException as error:  # noqa: BLE001  (whatever a vendor raises is the answer)
        text = f"{type(error).__name__}: {error}"
        connection.send({"fork": text, "spawn": text})
    finally:
        connection.close()


def _both(vendor: str, device: str | None, seed: int) -> dict[str, Verdicts | str]:
    from fl_dispatch.testing.vendors import registered

    registry = registered(vendor)[0]  # as a launcher does it: vendors are loaded, nothing is asked of a device
    touched = _initialised(device)
    answers: dict[str, Verdicts | str] = {}
    if touched is not None:
        answers["fork"] = touched
    elif hasattr(os, "fork"):
        answers["fork"] = _in_a_fork(lambda: _use(vendor, registry, device, seed))
    answers["spawn"] = _use(vendor, registry, device, seed)
    return answers


def _initialised(device: str | None) -> str | None:
    import torch

    if device in (None, "cpu"):
        return None
    asked = getattr(torch.get_device_module(device), "is_initialized", None)
    if asked is not None and asked():
        return f"importing and registering it initialised {device}; after that no fork can use the device"
    return None


def _in_a_fork(work: Callable[[], Verdicts]) -> Verdicts | str:
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            answer: Verdicts | str = work()
        except BaseException as error:  # noqa: BLE001  (whatever a vendor raises is the answer)
            answer = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], TIMEOUT / 2)
    if not ready:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        return f"it hung: no answer in {TIMEOUT / 2:.0f} s"
    with os.fdopen(reader) as stream:
        text = stream.read()
    _, status = os.waitpid(process, 0)
    if not text:
        return f"the process ended with status {os.waitstatus_to_exitcode(status)} and no answer"
    verdicts: Verdicts | str = json.loads(text)
    return verdicts


def _use(vendor: str, registry: Any, device: str | None, seed: int) -> Verdicts:
    """A few calls of every implementation, each judged."""
    import torch

    from fl_dispatch.testing.calls import copied, run, samples_for
    from fl_dispatch.testing.case import CheckFailed
    from fl_dispatch.testing.judge import Worst, compare
    from fl_dispatch.testing.vendors import targets

    verdicts: Verdicts = {}
    for target in targets(vendor, registry, device=device, seed=seed):
        verdicts[target.name] = target.unavailable
        if target.unavailable is not None or not target.dtypes:
            continue
        dtype = target.dtypes[0]
        try:
            with torch.no_grad():
                for family, sample in samples_for(target, dtype):
                    if family in ("ordinary", "one_token"):
                        compare(target.spec, dtype, sample, run(target, copied(sample)[0], dtype), Worst())
        except CheckFailed as error:
            verdicts[target.name] = f"{error.problem}, with input {error.input}"
    return verdicts
