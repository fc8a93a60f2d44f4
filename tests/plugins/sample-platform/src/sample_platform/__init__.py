# SPDX-License-Identifier: Apache-2.0
"""One operator, and facts about a device from which both frameworks' platforms are made. Present where SAMPLE_PLATFORM=1."""

import os
import sys

from fl_dispatch import BackendImplKind, DevicePlatform, OpImpl, Vendor


def silu_and_mul(obj, x):
    import torch

    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def register(registry):
    registry.register(
        OpImpl(
            "silu_and_mul",
            "vendor.sample_platform",
            BackendImplKind.VENDOR,
            silu_and_mul,
            vendor="sample_platform",
            mutates=frozenset(),
            reads=frozenset(),
            traceable=True,
        )
    )


def setup():
    """Leaves a line in the file SAMPLE_PLATFORM_LOG: which process was set up, and what of SGLang Diffusion's it had imported."""
    path = os.environ.get("SAMPLE_PLATFORM_LOG")
    if path:
        early = [
            name
            for name in ("runtime.managers.gpu_worker", "runtime.server_args")
            if f"sglang.multimodal_gen.{name}" in sys.modules
        ]
        with open(path, "a", encoding="utf-8") as log:
            log.write(" ".join(["setup", str(os.getpid()), *early]) + "\n")


PLATFORM = DevicePlatform(
    device_type="cpu",
    present=lambda: os.environ.get("SAMPLE_PLATFORM") == "1" or "no SAMPLE_PLATFORM=1",
    distributed_backend="gloo",
    dispatch_key="CPU",
    setup=setup,
    device_name=lambda index: f"sample chip {index}",
    device_capability=lambda index: (4, 2),
    memory=lambda index: (6 << 30, 8 << 30),
    server_args={"sampling_backend": "pytorch", "max_running_requests": 3},
    classes={
        "sglang.kv_pool.mha": "sample_platform.sglang_pool.SamplePool",
        "vllm.platform": "vllm.platforms.cpu.CpuPlatform",
        "vllm.worker": "vllm_fl_adapter.cpu_worker.CpuWorker",
        "vllm.attention": "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend",
    },
)

VENDOR = Vendor("sample_platform", register, platform=PLATFORM)
