# SPDX-License-Identifier: Apache-2.0
"""Run as a program by the tests: an image of SGLang Diffusion for each run of the job, in workers of their own.

Laid out as SGLang wants offline scripts: spawned workers execute the module scope again.
"""

import json
import os
import sys
from pathlib import Path

from sglang.multimodal_gen import DiffGenerator


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    for run in job["runs"]:
        os.environ.pop("SGLANG_FL_REPORT", None)
        os.environ.update(run["variables"])
        try:
            generator = DiffGenerator.from_pretrained(
                model_path=job["model"],
                num_gpus=1,
                dit_precision="fp32",
                vae_precision="fp32",
                text_encoder_precisions=("fp32",),
            )
        except Exception as error:  # noqa: BLE001  (what SGLang makes of a worker that failed is the result)
            Path(run["failure"]).write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
            continue
        try:
            sampling = {**job["sampling"], "save_output": False, "return_frames": True}
            image = generator.generate(sampling_params_kwargs=sampling).frames[0]
            if run["report"]:
                from fl_dispatch import wait_for_report

                wait_for_report(Path(run["report"]), job["calls"], timeout=10)
            Path(run["image"]).write_text(json.dumps(image.tolist()), encoding="utf-8")
        finally:
            generator.shutdown()


if __name__ == "__main__":
    main()
