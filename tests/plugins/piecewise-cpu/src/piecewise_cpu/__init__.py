# SPDX-License-Identifier: Apache-2.0
"""Two activations that differ in a constant only, one of them not traceable, and facts about a platform."""

import os

from fl_dispatch import BackendImplKind, DevicePlatform, OpImpl, Vendor


def doubled(obj, x):
    gate, up = x.chunk(2, dim=-1)
    return gate * up * 2.0


def tripled(obj, x):
    gate, up = x.chunk(2, dim=-1)
    return gate * up * 3.0


def tripled_untraceable(obj, x):
    if os.getpid() < 0:  # nothing that Dynamo could trace through
        raise OSError
    return tripled(obj, x)


def register(registry):
    for function, traceable in ((doubled, True), (tripled, True), (tripled_untraceable, False)):
        registry.register(
            OpImpl(
                "silu_and_mul",
                f"vendor.piecewise_cpu.{function.__name__}",
                BackendImplKind.VENDOR,
                function,
                vendor="piecewise_cpu",
                mutates=frozenset(),
                reads=frozenset(),
                traceable=traceable,
            )
        )


PLATFORM = DevicePlatform(
    device_type="cpu",
    present=lambda: os.environ.get("PIECEWISE_CPU") == "1" or "no PIECEWISE_CPU=1",
    distributed_backend="gloo",
    dispatch_key="CPU",
    classes={
        "vllm.platform": "piecewise_cpu.platform.PiecewiseCpu",
        "vllm.worker": "vllm_fl_adapter.cpu_worker.CpuWorker",
        "vllm.attention": "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend",
    },
)

VENDOR = Vendor("piecewise_cpu", register, platform=PLATFORM)
