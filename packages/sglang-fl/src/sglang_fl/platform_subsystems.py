# SPDX-License-Identifier: Apache-2.0
"""What a platform tells SGLang to build: capabilities, subsystem classes, quantization, compiler, layers' own methods.

Up to 0.5.21 SGLang asks whether it may capture graphs, and a platform has to name the memory classes, also when they are
SGLang's own. From 0.5.22 on it reads ``capabilities``, and no answer means SGLang's own classes.
"""

from __future__ import annotations

import importlib
from typing import Any

from sglang.srt.platforms import interface

from fl_dispatch import DevicePlatform

#: Whether this SGLang is of the newer generation.
DECLARES_CAPABILITIES = hasattr(interface, "PlatformCapabilities")
_MEMORY = "sglang.srt.mem_cache.memory_pool"
#: SGLang's own memory classes, by the kind of attention; the first that this version has.
_OWN_POOLS = {"mha": ["MHATokenToKVPool"], "mla": ["MLATokenToKVPool"], "dsa": ["DSATokenToKVPool", "NSATokenToKVPool"]}


class Subsystems:
    """The part of the platform that hands out classes, for one ``DevicePlatform``."""

    facts: DevicePlatform

    def named_class(self, purpose: str) -> Any:
        """The class that the facts name for a purpose, ``"sglang." + purpose``; None when they name none."""
        return self.facts.named_class(f"sglang.{purpose}")

    def _names(self, purpose: str) -> bool:
        return f"sglang.{purpose}" in self.facts.classes

    # -- capabilities

    def capability_flags(self) -> Any:
        """SGLang's declaration of what the platform can do, of the fields that this version has; None before 0.5.22."""
        if not DECLARES_CAPABILITIES:
            return None
        kind = interface.PlatformCapabilities
        flags = {
            "supports_triton": self.facts.triton,
            "graph_capture": self.support_cuda_graph(),
            "piecewise_graph": self.support_piecewise_cuda_graph(),
        }
        return kind(**{name: value for name, value in flags.items() if name in kind.__struct_fields__})

    def support_cuda_graph(self) -> bool:
        """Only with a runner of the vendor's: SGLang's own ones are for the devices in its tree."""
        return self.facts.graphs and self._names("graph_runner")

    def support_piecewise_cuda_graph(self) -> bool:
        return self.facts.piecewise_graphs and self._names("piecewise_backend")

    def supports_fp8(self) -> bool:
        return self.facts.fp8

    # -- classes

    def get_default_attention_backend(self) -> str:
        return self.facts.attention_backend

    def get_graph_runner_cls(self) -> Any:
        return self.named_class("graph_runner")

    def get_full_graph_backend_cls(self) -> Any:
        return self.named_class("full_graph_backend")

    def get_piecewise_backend_cls(self) -> Any:
        return self.named_class("piecewise_backend")

    def get_communicator_class(self) -> Any:
        return self.named_class("communicator")

    def get_paged_allocator_cls(self) -> Any:
        named = self.named_class("paged_allocator")
        if named is not None or DECLARES_CAPABILITIES:
            return named
        return importlib.import_module("sglang.srt.mem_cache.allocator").PagedTokenToKVPoolAllocator

    def get_kv_pool_cls(self, *, kind: str) -> Any:
        return self.named_class(f"kv_pool.{kind}")

    def _pool(self, kind: str) -> Any:
        """Of the older generation, which takes no None for an answer."""
        named = self.named_class(f"kv_pool.{kind}")
        module = importlib.import_module(_MEMORY)
        return named or next(getattr(module, name) for name in _OWN_POOLS[kind] if hasattr(module, name))

    if not DECLARES_CAPABILITIES:  # the newer generation warns of a platform that has them

        def get_mha_kv_pool_cls(self) -> Any:
            return self._pool("mha")

        def get_mla_kv_pool_cls(self) -> Any:
            return self._pool("mla")

        def get_dsa_kv_pool_cls(self) -> Any:
            return self._pool("dsa")

        def get_nsa_kv_pool_cls(self) -> Any:
            """What 0.5.11 calls it."""
            return self._pool("dsa")

    # -- speculative decoding: what the vendor has a worker for

    def supports_speculative_algorithm(self, algorithm: str) -> bool:
        return self._names(f"speculative_worker.{algorithm}")

    def get_speculative_worker_cls(self, algorithm: str) -> Any:
        return self.named_class(f"speculative_worker.{algorithm}")

    def get_speculative_graph_runner_cls(self, algorithm: str, phase: str) -> Any:
        return self.named_class(f"speculative_graph_runner.{phase}")

    def get_default_speculative_draft_attention_backend(self, algorithm: str) -> str:
        return self.facts.attention_backend

    def supports_speculative_draft_attention_backend(self, algorithm: str, backend: str) -> bool:
        return self.supports_speculative_algorithm(algorithm) and backend == self.facts.attention_backend

    # -- quantization

    def verify_quantization(self, quant: str) -> None:
        if self.facts.quantization and quant not in self.facts.quantization:
            known = ", ".join(self.facts.quantization)
            raise ValueError(f"quantization {quant!r} does not work on {self.facts.device_type}; what does: {known}")

    def get_quantization_config(self, quantization: str) -> Any:
        """The vendor's class; None for SGLang's own one.

        Raises:
            ValueError: the facts list what works, and this is not in it.
        """
        self.verify_quantization(quantization)
        return self.named_class(f"quantization.{quantization}")

    # -- compiler and layers

    def get_compile_backend(self, mode: str | None = None) -> str:
        return self.facts.compile_backend

    def get_dispatch_key_name(self) -> str:
        return self.facts.native_forward
