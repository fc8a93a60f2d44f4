# SPDX-License-Identifier: Apache-2.0
"""Run as a program by the tests: SGLang's plug-in loader under one condition after the other, each in a fork of its own.

SGLang takes seconds to import; forking from one process that has done it is the same code in a fraction of the time.
loader_in_forks.py CASES.json prints one answer a case. With ``"worker": true`` a scheduler is built after loading, with a
model of real layers: SGLang's registry, hooks and layers, on methods without the engine that is behind them.
"""

import json
import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class Warnings(logging.Handler):
    """The messages from warnings on, as a list."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def prepare_worker() -> None:
    """What a scheduler process has imported, and methods that build a model of two layers."""
    from server_arguments import publish_arguments
    from sglang.srt.managers import scheduler
    from sglang.srt.platforms import current_platform

    # Importing the runner sets up the platform, which wants our hooks first: here the platform is no matter.
    current_platform.init_backend = lambda: None  # type: ignore[method-assign]
    from sglang.srt.model_executor import model_runner
    from sglang.srt.server_args import ServerArgs

    publish_arguments()

    def load_model(self: Any, *, new_option: str = "") -> None:
        self.done.append(f"load_model {new_option}")

    def init(self: Any, server_args: Any, port_args: Any, *, new_option: str = "") -> None:
        self.runner.done.append(f"__init__ {new_option}")
        model_runner.ModelRunner.load_model(self.runner, new_option=new_option)

    ServerArgs.check_server_args = lambda self: None  # type: ignore[method-assign]
    scheduler.Scheduler.__init__ = init  # type: ignore[assignment,method-assign]
    model_runner.ModelRunner.load_model = load_model  # type: ignore[assignment,method-assign]


def build_worker() -> dict[str, Any]:
    """Build the scheduler, run the model once, and tell what ran."""
    import torch
    from sglang.srt.layers.activation import SiluAndMul
    from sglang.srt.layers.layernorm import RMSNorm
    from sglang.srt.managers import scheduler
    from sglang.srt.server_args import ServerArgs

    from sglang_fl import worker

    ServerArgs.check_server_args(SimpleNamespace(use_ray="RAY" in os.environ))  # type: ignore[arg-type]

    model = torch.nn.Sequential(RMSNorm(32), SiluAndMul())
    runner = SimpleNamespace(model=model, device="cpu", server_args=None, done=[])
    built = object.__new__(scheduler.Scheduler)
    built.runner = runner  # type: ignore[attr-defined]
    built.__init__(None, None, new_option="of a newer version")  # type: ignore[misc,call-arg,arg-type]
    with torch.no_grad():
        model(torch.ones(2, 32))
    report = worker._report
    rows = report.rows() if report else []
    return {"done": runner.done, "ran": sorted([row["operator"], row["implementation"], row["calls"]] for row in rows)}


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """Load under the case's conditions."""
    os.environ.update(case.get("variables", {}))
    sys.path[:0] = case.get("before", [])
    sys.path += case.get("after", [])
    warnings = Warnings()
    logging.getLogger().addHandler(warnings)
    told: dict[str, Any] = {"outcome": "loaded"}
    try:
        from sglang.srt.plugins import load_plugins
        from sglang.srt.plugins.hook_registry import HookRegistry

        from sglang_fl.doctor import check
        from sglang_fl.plugin import installed

        told["faults"] = [finding.subject for finding in check() if finding.level == "fault"]
        load_plugins()
        here = installed()
        told["hooks"] = len(HookRegistry._hooks[here.seam.target]) if here else 0
        if case.get("worker"):
            told |= build_worker()
    except SystemExit as stop:
        told["outcome"] = str(stop.code)
    except Exception as error:  # noqa: BLE001  (the answer is what happened)
        told["outcome"] = f"{type(error).__name__}: {error}"
    told["others"] = getattr(sys.modules.get("other_hooks"), "CALLS", [])
    return {**told, "warnings": warnings.messages}


def main() -> None:
    cases = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    if any(case.get("worker") for case in cases.values()):
        prepare_worker()
    else:
        import sglang.srt.plugins  # noqa: F401
    answers = {}
    for name, case in cases.items():
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            with os.fdopen(write, "w") as pipe:
                pipe.write(json.dumps(answer(case)))
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            answers[name] = json.loads(pipe.read())
        os.waitpid(child, 0)
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
