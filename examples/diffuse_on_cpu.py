# SPDX-License-Identifier: Apache-2.0
"""Real SGLang Diffusion on the CPU, one small image through fl-dispatch: diffuse_on_cpu.py [--image FILE.png]

The model is a Z-Image pipeline of 4 MB with random weights, made on the spot, so the image shows nothing. Prints which
implementation served which layer, with the calls counted in SGLang's own worker. Exit status 1 when a call is missing.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

# Of SGLang Diffusion nothing else: its workers execute this module again, before they have a platform.
from sglang.multimodal_gen import DiffGenerator


def main() -> int:
    from tiny_zimage import CALLS, SAMPLING, make

    from fl_dispatch import format_report, wait_for_report

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", type=Path, default=Path("image.png"))
    image = parser.parse_args().image
    with tempfile.TemporaryDirectory() as folder:
        # A CPU has a platform of SGLang's own; this asks for the same with our hooks.
        os.environ.setdefault("SGLANG_DIFFUSION_PLATFORM_OVERRIDE", "sglang_fl")
        path = Path(os.environ.setdefault("SGLANG_FL_REPORT", f"{folder}/report.json"))
        precision = {"dit_precision": "fp32", "vae_precision": "fp32", "text_encoder_precisions": ("fp32",)}
        generator = DiffGenerator.from_pretrained(model_path=str(make(Path(folder))), num_gpus=1, **precision)
        try:
            sampling = {**SAMPLING, "save_output": False, "return_frames": True}
            pixels = generator.generate(sampling_params_kwargs=sampling).frames[0]
            # The worker writes its report twice a second, and is killed at shutdown.
            written = path.with_name(f"{path.stem}.rank0{path.suffix}")
            try:
                report, status = wait_for_report(written, CALLS, timeout=10), 0
            except TimeoutError:  # other counts than wanted
                report, status = wait_for_report(written), 1
        finally:
            generator.shutdown()
    from PIL import Image

    Image.fromarray(pixels).save(image)
    print(f"\n{format_report(report)}\n\nwanted: {CALLS}\nimage: {image}")
    return status


if __name__ == "__main__":
    sys.exit(main())
