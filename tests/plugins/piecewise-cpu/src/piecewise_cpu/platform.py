# SPDX-License-Identifier: Apache-2.0
"""vLLM's platform for CPUs without its switch to a single trace, so that vLLM compiles as it does on devices."""

from vllm.platforms.cpu import CpuPlatform


class PiecewiseCpu(CpuPlatform):
    @classmethod
    def check_and_update_config(cls, vllm_config):
        from vllm.config import CompilationMode  # not while vLLM is still choosing its platform

        compilation = vllm_config.compilation_config
        wanted = compilation.mode
        if wanted == CompilationMode.VLLM_COMPILE:
            compilation.mode = CompilationMode.NONE  # what the parent leaves alone
        super().check_and_update_config(vllm_config)
        compilation.mode = wanted
        compilation.compile_sizes = compilation.compile_sizes or []
