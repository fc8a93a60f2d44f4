# SPDX-License-Identifier: Apache-2.0
"""vLLM's CPU worker for a platform that is not vLLM's own CPU platform."""

from __future__ import annotations

import contextlib
from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker


class CpuWorker(CPUWorker):
    """As vLLM's, without a pool of device memory."""

    def _maybe_get_memory_pool_context(self, tag: str) -> Any:
        return contextlib.nullcontext()
