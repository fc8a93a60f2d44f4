# SPDX-License-Identifier: Apache-2.0
"""Everything that runs on the GPU box, from unpacking to results, in one command.

    python3 benchmarks/gpu/on_box.py --out DIR [--steps STEP,...] [-- further arguments]

It uses the box's own python3 with its torch and pytest, and what ``prepare.py`` put into ``.gpu-parts``. Every step
runs in a process of its own, to its end or for as long as it may; the exit status says whether all of them went well. Where all
parts together are too large to carry, give one ``--site`` and run it once for each part with ``--steps=``, which only unpacks.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from engines import VLLM_VARIABLES
from folders import Folders, framework, unpack

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DEFAULT_STEPS = "versions,tests,kit,micro"
VERSIONS = """
import sys, torch, triton
print("python", sys.version.split()[0], "torch", torch.__version__, "triton", triton.__version__)
print(torch.cuda.get_device_name(), torch.cuda.get_device_capability())
import fl_dispatch
for op in ("silu_and_mul", "rms_norm", "gemma_rms_norm", "rotary_embedding"):
    print(fl_dispatch.explain(op, dtype="bfloat16").describe())
"""
#: Step to serve.py's group.
SERVE = {
    "serve-graphs": "CUDA graphs",
    "serve-eager": "eager",
    "serve-piecewise": "piecewise CUDA graphs",
    "vllm-compiled": "vLLM compiled",
    "vllm-eager": "vLLM eager",
}
LOGITS = ("logits", "vllm-logits")
STEPPING = ("steps", "vllm-steps")
KERNELS = ("kernels", "vllm-kernels")
BRIDGES = ("bridge", "vllm-bridge")
#: Step to the program that takes further arguments.
TAKING = {
    **dict.fromkeys(("tests", "kit", "aten"), "pytest"),
    **dict.fromkeys(SERVE, "serve.py"),
    **dict.fromkeys(STEPPING, "steps.py"),
    **dict.fromkeys(KERNELS, "step_kernels.py"),
}
#: Step to seconds after which it is ended; what it has written by then stays.
LIMITS = {
    **dict.fromkeys([*SERVE, *STEPPING, *KERNELS, "tp"], 480.0),
    **dict.fromkeys(LOGITS, 360.0),
    "tune-vllm": 180.0,
}
STEPS = (
    "versions",
    "tests",
    "kit",
    "micro",
    "aten",
    "aten-cost",
    *BRIDGES,
    "tune",
    "tune-eager",
    "tune-vllm",
    *LOGITS,
    *SERVE,
    *STEPPING,
    *KERNELS,
    "tp",
)


def environment(step: str, folders: Folders) -> dict[str, str]:
    """Variables of a step. sgl_kernel is linked against CUDA libraries that torch brings in its own folders."""
    found = subprocess.run(
        [sys.executable, "-c", "import nvidia; print(*nvidia.__path__)"], capture_output=True, text=True, check=False
    )
    libraries = [str(lib) for path in found.stdout.split() for lib in sorted(Path(path).glob("*/lib"))]
    return {
        **os.environ,
        **(VLLM_VARIABLES if framework(step) == "vllm" else {}),
        "PYTHONPATH": os.pathsep.join(map(str, (folders.own, folders.of_step(step), ROOT / "tools"))),
        "LD_LIBRARY_PATH": os.pathsep.join([*libraries, os.environ.get("LD_LIBRARY_PATH", "")]),
        "PYTHONUNBUFFERED": "1",
    }


def commands(step: str, folders: Folders, extra: list[str], seconds: float) -> list[list[str]]:
    """What a step runs, one after the other."""
    python, out = sys.executable, folders.out
    if step == "versions":
        return [[python, "-c", VERSIONS]]
    # Warnings are what the box's other packages make of each other.
    options = ["-p", "no:cacheprovider", "-W", "default", "-q", "--tb=short", f"--junitxml={out / f'gpu-{step}.xml'}"]
    tests = ROOT / "tests" / "gpu"
    conformance = tests / "test_conformance.py"
    if step == "tests":
        apart = [f"--ignore={path}" for path in (conformance, tests / "test_aten.py")]
        return [[python, "-m", "pytest", str(tests), *apart, *options, *extra]]
    if step == "aten":
        return [[python, "-m", "pytest", str(tests / "test_aten.py"), *options, *extra]]
    if step == "aten-cost":
        return [[python, str(HERE / "aten.py"), "--out", str(out)]]
    if step in ("tune", "tune-eager", "tune-vllm"):
        # A policy with its picture, in the sizes of an 8B model; that for eager engines is chosen from the same figures.
        name, prefix = ("fl-tuned-vllm", "VLLM_FL_") if step == "tune-vllm" else ("fl-tuned", "SGLANG_FL_")
        tune = [python, "-m", "fl_dispatch", "tune", "--prefix", prefix, "--force"]
        measured, eager = str(out / f"{name}.yaml"), str(out / f"{name}-eager.yaml")
        both = [[*tune, "--output", measured], [*tune, "--from", measured, "--for", "eager", "--output", eager]]
        return {"tune": both[:1], "tune-eager": both[1:]}.get(step, both)
    if step == "kit":
        # kit.json and kit.html: every check of flagos, cuda and reference with its figures.
        return [[python, "-m", "pytest", str(conformance), f"--fl-report={out / 'kit.json'}", *options, *extra]]
    if step == "micro":
        return [[python, str(HERE / "micro.py"), "--out", str(out)]]
    if step in BRIDGES:
        return [[python, str(HERE / "bridge.py"), "--out", str(out), "--framework", framework(step)]]
    common = ["--out", str(out), "--site", str(folders.of_step(step)), "--own", str(folders.own)]
    if step in SERVE:
        return [[python, str(HERE / "serve.py"), *common, "--groups", SERVE[step], "--seconds", f"{seconds:g}", *extra]]
    chosen = ["--framework", framework(step)]
    if step in STEPPING:  # three engines, each with two numbers of requests
        return [[python, str(HERE / "steps.py"), *common, *chosen, "--seconds", f"{seconds / 6:g}", *extra]]
    if step in KERNELS:
        return [[python, str(HERE / "step_kernels.py"), *common, *chosen, *extra]]
    if step in LOGITS:
        model = folders.beside("model")
        made = model / "model.safetensors"
        # Its packages are SGLang's, with either framework.
        unpacking = [python, str(HERE / "carried_model.py"), "unpack", str(folders.beside("pieces")), str(model)]
        asking = [python, str(HERE / "logits.py"), *common, *chosen, "--model", str(model)]
        return [*([] if made.exists() else [unpacking]), asking]
    return [[python, str(HERE / "tensor_parallel.py"), *common]]


def run(step: str, folders: Folders, extra: list[str], seconds: float) -> int:
    """One step: its output goes to the log while it runs; 124 where it was ended for its time."""
    deadline = time.monotonic() + LIMITS.get(step, 3600.0)
    with (folders.out / f"{step}.log").open("w", encoding="utf-8") as file:
        for command in commands(step, folders, extra, seconds):
            variables = environment(step, folders)
            if "unpack" in command:
                variables["PYTHONPATH"] = str(folders.site)
            process = subprocess.Popen(command, env=variables, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
            try:
                status = process.wait(max(1.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                status = 124
            finally:
                # SIGTERM has the steps end their engines.
                if process.poll() is None:
                    process.terminate()
                    try:
                        process.wait(30)
                    except subprocess.TimeoutExpired:
                        process.kill()
            if status:
                return status
    return 0


def main() -> int:
    """Run the steps; 0 if all of them went well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=Path, default=ROOT / ".gpu-parts")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--site", type=Path, help="where to unpack to; a temporary folder by default")
    parser.add_argument("--steps", default=DEFAULT_STEPS, help=f"some of: {','.join(STEPS)}")
    parser.add_argument("--seconds", type=float, default=150.0, help="of measuring in each step that serves")
    parser.add_argument(
        "further", nargs="*", help="after --, for every step whose program takes any: pytest, serve.py, steps.py, ..."
    )
    arguments = parser.parse_args()
    steps = list(filter(None, arguments.steps.split(",")))
    unknown = [step for step in steps if step not in STEPS]
    if unknown:
        parser.error(f"unknown step {unknown[0]!r}; there are: {', '.join(STEPS)}")
    taking = {TAKING[step]: step for step in steps if step in TAKING}
    if arguments.further and len(taking) != 1:
        found = ", ".join(f"{step} ({program})" for program, step in taking.items()) or "none of the steps"
        parser.error(f"arguments after -- are for the steps of one program; here {found} would take them")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    arguments.out.mkdir(parents=True, exist_ok=True)
    folders = Folders((arguments.site or Path(tempfile.mkdtemp(prefix="site-"))).resolve(), arguments.out.resolve())
    unpack(arguments.parts, folders)
    failed = []
    for step in steps:
        started = time.monotonic()
        print(f"== {step}", flush=True)
        status = run(step, folders, arguments.further, arguments.seconds)
        print((arguments.out / f"{step}.log").read_text(encoding="utf-8", errors="replace")[-6000:])
        print(f"== {step}: exit status {status}, {time.monotonic() - started:.0f} s", flush=True)
        failed += [step] if status else []
    print("failed: " + ", ".join(failed) if failed else "all steps went well")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
