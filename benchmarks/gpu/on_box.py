# SPDX-License-Identifier: Apache-2.0
"""Everything that runs on the GPU box, from unpacking to results, in one command.

    python3 benchmarks/gpu/on_box.py --out DIR [--steps STEP,...] [-- pytest arguments]

Steps: versions, tests, kit, micro, aten, aten-cost, tune, tune-eager, serve, and on a box with two GPUs tp.

It uses the box's own python3 with its torch and pytest, and what ``prepare.py`` put into ``.gpu-parts``. Every step
runs in a process of its own and to its end; the exit status says whether all of them went well. Where all parts together
are too large to carry, give one ``--site`` and run it once for each part with ``--steps=``, which only unpacks.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
STEPS = ("versions", "tests", "kit", "micro", "aten", "aten-cost", "tune", "tune-eager", "serve", "tp")
DEFAULT_STEPS = "versions,tests,kit,micro"
VERSIONS = """
import sys, torch, triton
print("python", sys.version.split()[0], "torch", torch.__version__, "triton", triton.__version__)
print(torch.cuda.get_device_name(), torch.cuda.get_device_capability())
import fl_dispatch
for op in ("silu_and_mul", "rms_norm", "gemma_rms_norm", "rotary_embedding"):
    print(fl_dispatch.explain(op, dtype="bfloat16").describe())
"""


def unpack(parts: Path, site: Path, own: Path) -> None:
    """All wheels into folders for PYTHONPATH: this repository's into one of their own, so that they can be left out."""
    for wheel in sorted(parts.glob("*/*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(own if wheel.parent.name == "own" else site)
    shutil.copyfile(HERE / "absent.py", site / "sitecustomize.py")


def environment(site: Path, own: Path) -> dict[str, str]:
    """Variables of every step. sgl_kernel is linked against CUDA libraries that torch brings in its own folders."""
    found = subprocess.run(
        [sys.executable, "-c", "import nvidia; print(*nvidia.__path__)"], capture_output=True, text=True, check=False
    )
    folders = [str(lib) for path in found.stdout.split() for lib in sorted(Path(path).glob("*/lib"))]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (own, site, ROOT / "tools"))),
        "LD_LIBRARY_PATH": os.pathsep.join([*folders, os.environ.get("LD_LIBRARY_PATH", "")]),
        "PYTHONUNBUFFERED": "1",
    }


def command(step: str, out: Path, site: Path, own: Path, extra: list[str]) -> list[str]:
    """What a step runs."""
    if step == "versions":
        return [sys.executable, "-c", VERSIONS]
    # Warnings are what the box's other packages make of each other.
    options = ["-p", "no:cacheprovider", "-W", "default", "-q", "--tb=short", f"--junitxml={out / f'gpu-{step}.xml'}"]
    folder = ROOT / "tests" / "gpu"
    conformance = folder / "test_conformance.py"
    if step == "tests":
        apart = [f"--ignore={path}" for path in (conformance, folder / "test_aten.py")]
        return [sys.executable, "-m", "pytest", str(folder), *apart, *options, *extra]
    if step == "aten":
        return [sys.executable, "-m", "pytest", str(folder / "test_aten.py"), *options, *extra]
    if step == "aten-cost":
        return [sys.executable, str(HERE / "aten.py"), "--out", str(out)]
    if step in ("tune", "tune-eager"):
        # fl-tuned.yaml with its picture, in the sizes of an 8B model; fl-tuned-eager.yaml is chosen from the same figures.
        tuned, eager = str(out / "fl-tuned.yaml"), str(out / "fl-tuned-eager.yaml")
        tune = ["--output", tuned] if step == "tune" else ["--from", tuned, "--for", "eager", "--output", eager]
        return [sys.executable, "-m", "fl_dispatch", "tune", "--prefix", "SGLANG_FL_", "--force", *tune]
    if step == "kit":
        # kit.json and kit.html: every check of flagos, cuda and reference with its figures.
        return [sys.executable, "-m", "pytest", str(conformance), f"--fl-report={out / 'kit.json'}", *options, *extra]
    if step == "micro":
        return [sys.executable, str(HERE / "micro.py"), "--out", str(out)]
    script = HERE / ("tensor_parallel.py" if step == "tp" else "serve.py")
    return [sys.executable, str(script), "--out", str(out), "--site", str(site), "--own", str(own)]


def main() -> int:
    """Run the steps; 0 if all of them went well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=Path, default=ROOT / ".gpu-parts")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--site", type=Path, help="where to unpack to; a temporary folder by default")
    parser.add_argument("--steps", default=DEFAULT_STEPS, help=f"some of: {','.join(STEPS)}")
    parser.add_argument("pytest", nargs="*", help="further arguments for pytest, after --")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    site = arguments.site or Path(tempfile.mkdtemp(prefix="site-"))
    own = site.with_name(f"{site.name}-own")
    for folder in (site, own):
        folder.mkdir(parents=True, exist_ok=True)
    unpack(arguments.parts, site, own)
    variables = environment(site, own)
    failed = []
    for step in filter(None, arguments.steps.split(",")):
        started = time.monotonic()
        print(f"== {step}", flush=True)
        log = arguments.out / f"{step}.log"
        with log.open("w", encoding="utf-8") as file:
            run = [*command(step, arguments.out, site, own, arguments.pytest)]
            status = subprocess.run(run, env=variables, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False)
        print(log.read_text(encoding="utf-8", errors="replace")[-6000:])
        print(f"== {step}: exit status {status.returncode}, {time.monotonic() - started:.0f} s", flush=True)
        failed += [step] if status.returncode else []
    print("failed: " + ", ".join(failed) if failed else "all steps went well")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
