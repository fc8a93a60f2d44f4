# SPDX-License-Identifier: Apache-2.0
"""``Vendor``: what an entry point of the group ``fl_dispatch.vendors`` may be, besides a ``register(registry)``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fl_dispatch.errors import ConfigError

if TYPE_CHECKING:
    from fl_dispatch.registry import OpRegistry

#: Versions of the vendor interface this core understands. A bare ``register(registry)`` function is version 1.
SUPPORTED_API_VERSIONS = (1,)

#: The entry-point group vendor distributions register in.
VENDOR_GROUP = "fl_dispatch.vendors"


@dataclass(frozen=True)
class DevicePlatform:
    """What a framework has to know about a device that it does not know. An adapter makes the framework's platform of it.

    Only the first three are required. Everything else has a careful default, and what a framework asks beyond this it
    answers itself. Nothing in here may import the SDK when the value is made: functions and dotted names do so when used.

    Args:
        device_type: torch's name of it, for example ``"npu"``.
        present: whether this machine has one; True, or False, or a reason why not. Asked in launchers too: it may look for
            device files, and must not create a device context or import the SDK.
        distributed_backend: of torch.distributed, for example ``"hccl"``.
        dispatch_key: torch's dispatch key of it.
        torch_module: dotted name of the module with ``set_device``, ``synchronize``, ``empty_cache``, ``mem_get_info``, ...;
            ``"torch.<device_type>"`` when empty. What it lacks is done without, or taken from the machine's memory.
        setup: called once in each worker process before anything is built on the device: imports the SDK, and raises what
            ought to stop the start.
        device_name: ``device_name(index)``, for people; the torch module's own when None.
        device_capability: ``device_capability(index)``, (major, minor); None: the device has no such number.
        memory: ``memory(index)``, (free, total) in bytes; the torch module's ``mem_get_info`` when None.
        pin_memory: host memory can be pinned for it.
        graphs: device graphs can be captured.
        piecewise_graphs: pieces of a compiled model can be captured.
        triton: Triton kernels run on it.
        fp8: it computes with 8-bit floating point numbers.
        quantization: methods that work on it, by the frameworks' names; empty: not said.
        compile_backend: of ``torch.compile``, by name.
        attention_backend: SGLang's name of the attention to take where the user asks for none.
        native_forward: which ``forward_<name>`` of a framework's layer serves an operator that is not dispatched.
        profiler_activity: member of ``torch.profiler.ProfilerActivity``.
        server_args: fields of SGLang's ServerArgs to what a user most likely wants; only for what the user left unset.
        classes: dotted names of classes by what they are for, for example ``"vllm.worker"``, ``"sglang.graph_runner"``;
            which there are is in docs/platforms.md.
    """

    device_type: str
    present: Callable[[], bool | str]
    distributed_backend: str
    dispatch_key: str = "PrivateUse1"
    graphs: bool = False
    classes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    torch_module: str = ""
    setup: Callable[[], None] | None = None
    device_name: Callable[[int], str] | None = None
    device_capability: Callable[[int], tuple[int, int] | None] | None = None
    memory: Callable[[int], tuple[int, int]] | None = None
    pin_memory: bool = False
    piecewise_graphs: bool = False
    triton: bool = False
    fp8: bool = False
    quantization: tuple[str, ...] = ()
    compile_backend: str = "inductor"
    attention_backend: str = "torch_native"
    native_forward: str = "native"
    profiler_activity: str = "CPU"
    server_args: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), hash=False)

    def __post_init__(self) -> None:
        for name in ("device_type", "distributed_backend", "dispatch_key"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise TypeError(f"DevicePlatform: {name} must be a non-empty string, not {value!r}")
        # Each of these is taken somewhere as its type allows: "no" is true, and the letters of "fp8" are three methods.
        if not callable(self.present):
            raise self._fault("present", "a function")
        for name in ("setup", "device_name", "device_capability", "memory"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise self._fault(name, "a function or None")
        for name in ("pin_memory", "graphs", "piecewise_graphs", "triton", "fp8"):
            if not isinstance(getattr(self, name), bool):
                raise self._fault(name, "True or False")
        for name in ("torch_module", "compile_backend", "attention_backend", "native_forward", "profiler_activity"):
            if not isinstance(getattr(self, name), str):
                raise self._fault(name, "a string")
        methods: Any = self.quantization
        if not isinstance(methods, tuple) or not all(isinstance(one, str) and one for one in methods):
            raise self._fault("quantization", "a tuple of names, such as ('fp8',)")
        for name in ("server_args", "classes"):
            facts: Any = getattr(self, name)
            if not isinstance(facts, Mapping) or not all(isinstance(key, str) and key for key in facts):
                raise self._fault(name, "a mapping from names")
        classes: Mapping[str, Any] = self.classes
        for purpose, dotted in classes.items():
            parts = dotted.split(".") if isinstance(dotted, str) else []
            if len(parts) < 2 or not all(part.isidentifier() for part in parts):
                raise TypeError(
                    f"DevicePlatform({self.device_type}): classes[{purpose!r}] must be a dotted name, not {dotted!r}"
                )

    def named_class(self, purpose: str) -> Any:
        """What ``classes`` names for a purpose, imported; None when it names nothing for it.

        Raises:
            ConfigError: the name cannot be imported.
        """
        dotted = self.classes.get(purpose)
        if dotted is None:
            return None
        try:
            return resolve_name(dotted)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"DevicePlatform({self.device_type}): classes[{purpose!r}] names {dotted!r}, which cannot be imported: "
                f"{type(error).__name__}: {error}; it is for the vendor's package to mend, another version of it may fit"
            ) from error

    def _fault(self, name: str, wanted: str) -> TypeError:
        return TypeError(f"DevicePlatform({self.device_type}): {name} must be {wanted}, not {getattr(self, name)!r}")


@dataclass(frozen=True)
class Vendor:
    """A vendor's distribution.

    Args:
        name: the vendor's name; must equal the entry point's name.
        register: adds the vendor's implementations to a registry. It must not import the vendor's SDK.
        api_version: version of this interface the distribution was written for (docs/versioning.md). The default stays 1
            in every fl-dispatch to come: what is not said is the oldest.
        platform: facts about the device, where frameworks do not know it.
    """

    name: str
    register: Callable[[OpRegistry], None]
    api_version: int = 1
    platform: DevicePlatform | None = None
