# SPDX-License-Identifier: Apache-2.0
"""vLLM's batch-invariant mode fixes the kernels to use; a dispatched operator would break its promise."""

from __future__ import annotations


def deterministic_mode() -> str | None:
    """The deterministic mode vLLM runs in, as a reason to leave layers to it; None in normal operation."""
    from vllm import envs

    return "VLLM_BATCH_INVARIANT is set" if getattr(envs, "VLLM_BATCH_INVARIANT", False) else None
