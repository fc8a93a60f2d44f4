# SPDX-License-Identifier: Apache-2.0
"""``Device``: what one device can be asked and told, from its facts and from torch's module for it."""

from __future__ import annotations

import functools
import gc
import importlib
import os
import platform as host
from typing import TYPE_CHECKING, Any

from fl_dispatch.vendor import DevicePlatform

if TYPE_CHECKING:
    import torch


class Device:
    """The operations behind a ``DevicePlatform``, for adapters. Where torch's module lacks one that is only a courtesy, it
    is done without. Nothing is imported before the first operation.
    """

    def __init__(self, facts: DevicePlatform) -> None:
        self.facts = facts

    @functools.cached_property
    def module(self) -> Any:
        """torch's module for the device; raises RuntimeError when nothing has brought it."""
        name = self.facts.torch_module or f"torch.{self.facts.device_type}"
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise RuntimeError(
                f"device {self.facts.device_type!r}: there is no module {name!r}; the setup() of its DevicePlatform has to import "
                "what brings it, or torch_module has to name another"
            ) from error

    def optional(self, operation: str, *args: Any) -> Any:
        """Call an operation of the module if it has it; else None."""
        function = getattr(self.module, operation, None)
        return function(*args) if callable(function) else None

    # -- selecting and waiting

    def at(self, index: int | None = None) -> torch.device:
        """torch's device of this index; a CPU has one only."""
        import torch

        if index is None or self.facts.device_type == "cpu":
            return torch.device(self.facts.device_type)
        return torch.device(self.facts.device_type, index)

    def select(self, device: Any) -> None:
        """Make it this thread's current device."""
        self.module.set_device(device)

    def synchronize(self) -> None:
        """Wait for the work that was given to it."""
        self.optional("synchronize")

    def empty_cache(self) -> None:
        """Give memory that is cached and not used back; on a CPU collect garbage."""
        if self.facts.device_type == "cpu":
            gc.collect()
        self.optional("empty_cache")

    def seed(self, seed: int) -> None:
        """Seed the generators of all devices of this kind."""
        self.optional("manual_seed_all", seed)

    # -- asking

    def name(self, index: int = 0) -> str:
        """For people."""
        if self.facts.device_name is not None:
            return str(self.facts.device_name(index))
        return str(self.optional("get_device_name", index) or f"{self.facts.device_type} ({host.machine()})")

    def uuid(self, index: int = 0) -> str:
        """What tells it from others, also across machines where the module knows; else host, type and index."""
        uuid = getattr(self.optional("get_device_properties", index), "uuid", None)
        return str(uuid) if uuid else f"{host.node() or 'host'}-{self.facts.device_type}-{index}"

    def capability(self, index: int = 0) -> tuple[int, int] | None:
        """(major, minor); None where the device has no such number."""
        return self.facts.device_capability(index) if self.facts.device_capability is not None else None

    def memory(self, index: int = 0) -> tuple[int, int]:
        """(free, total) in bytes; of the whole machine for a CPU.

        Raises:
            RuntimeError: neither the facts nor the module can say.
        """
        if self.facts.memory is not None:
            found = self.facts.memory(index)
        elif self.facts.device_type == "cpu":
            return _machine_memory()
        else:
            found = self.optional("mem_get_info", index)
        if found is None:
            raise RuntimeError(
                f"device {self.facts.device_type!r}: its memory is not known, {self.module.__name__} has no mem_get_info(); "
                "give memory= in its DevicePlatform"
            )
        free, total = found
        return int(free), int(total)

    def current_index(self) -> int:
        """The index of this thread's current device; 0 where the module cannot say."""
        index = self.optional("current_device")
        return index if isinstance(index, int) else 0


def _machine_memory() -> tuple[int, int]:
    """(available, total) in bytes; available counts what the kernel would give up for it, where it says so."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = os.sysconf("SC_PHYS_PAGES") * page
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024, total
    except OSError:
        pass
    return os.sysconf("SC_AVPHYS_PAGES") * page, total
