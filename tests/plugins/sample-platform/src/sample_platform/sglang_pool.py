# SPDX-License-Identifier: Apache-2.0
"""SGLang's own pool under another name: the vendor's class is the one that is built."""

import os

from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool


class SamplePool(MHATokenToKVPool):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        path = os.environ.get("SAMPLE_PLATFORM_LOG")
        if path:
            with open(path, "a", encoding="utf-8") as log:
                log.write(f"pool {os.getpid()}\n")
