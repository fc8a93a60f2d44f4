# SPDX-License-Identifier: Apache-2.0
"""fl-dispatch: one operator-dispatch core, so that the same vendor kernels serve SGLang and vLLM on any chip.

Every public name is here and loads when first used: importing this package imports neither torch nor anything heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_dispatch import ops as ops
    from fl_dispatch.aten import AtenReplacement as AtenReplacement
    from fl_dispatch.backends import Backend as Backend
    from fl_dispatch.compiled import compile_refusal as compile_refusal
    from fl_dispatch.compiled import compiled_call as compiled_call
    from fl_dispatch.config import Config as Config
    from fl_dispatch.config import load_config as load_config
    from fl_dispatch.device import Device as Device
    from fl_dispatch.discovery import VendorRecord as VendorRecord
    from fl_dispatch.discovery import installed_vendors as installed_vendors
    from fl_dispatch.doctor import Finding as Finding
    from fl_dispatch.errors import (
        ConfigError as ConfigError,
    )
    from fl_dispatch.errors import (
        FLDispatchError as FLDispatchError,
    )
    from fl_dispatch.errors import (
        FrozenSelectionError as FrozenSelectionError,
    )
    from fl_dispatch.errors import (
        NotSupported as NotSupported,
    )
    from fl_dispatch.errors import (
        OpArgumentError as OpArgumentError,
    )
    from fl_dispatch.errors import (
        OpExecutionError as OpExecutionError,
    )
    from fl_dispatch.errors import (
        RegistrationError as RegistrationError,
    )
    from fl_dispatch.errors import (
        SeamError as SeamError,
    )
    from fl_dispatch.errors import (
        SelectionError as SelectionError,
    )
    from fl_dispatch.errors import (
        UnknownOperatorError as UnknownOperatorError,
    )
    from fl_dispatch.manager import OpManager as OpManager
    from fl_dispatch.native import FrameworkLayer as FrameworkLayer
    from fl_dispatch.native import rotary_arguments as rotary_arguments
    from fl_dispatch.native import standard_rotary as standard_rotary
    from fl_dispatch.ops.spec import Field as Field
    from fl_dispatch.ops.spec import OpSpec as OpSpec
    from fl_dispatch.ops.spec import Sample as Sample
    from fl_dispatch.ops.spec import Tolerance as Tolerance
    from fl_dispatch.platforms import PlatformRecord as PlatformRecord
    from fl_dispatch.platforms import device_platforms as device_platforms
    from fl_dispatch.policy import SelectionPolicy as SelectionPolicy
    from fl_dispatch.registry import OpRegistry as OpRegistry
    from fl_dispatch.report import Report as Report
    from fl_dispatch.report_file import wait_for_report as wait_for_report
    from fl_dispatch.report_text import format_report as format_report
    from fl_dispatch.runtime import (
        call_op as call_op,
    )
    from fl_dispatch.runtime import (
        default_manager as default_manager,
    )
    from fl_dispatch.runtime import (
        explain as explain,
    )
    from fl_dispatch.runtime import (
        policy_context as policy_context,
    )
    from fl_dispatch.runtime import (
        replace_aten as replace_aten,
    )
    from fl_dispatch.runtime import (
        resolve_op as resolve_op,
    )
    from fl_dispatch.selection import DeviceFacts as DeviceFacts
    from fl_dispatch.selection import Selection as Selection
    from fl_dispatch.selection import select as select
    from fl_dispatch.site import Site as Site
    from fl_dispatch.types import (
        BackendImplKind as BackendImplKind,
    )
    from fl_dispatch.types import (
        BackendPriority as BackendPriority,
    )
    from fl_dispatch.types import (
        OpImpl as OpImpl,
    )
    from fl_dispatch.vendor import DevicePlatform as DevicePlatform
    from fl_dispatch.vendor import Vendor as Vendor

__version__ = "0.1.0"

_HOME = {
    "AtenReplacement": "aten",
    "Backend": "backends",
    "BackendImplKind": "types",
    "BackendPriority": "types",
    "Config": "config",
    "ConfigError": "errors",
    "Device": "device",
    "DeviceFacts": "selection",
    "DevicePlatform": "vendor",
    "FLDispatchError": "errors",
    "Field": "ops.spec",
    "Finding": "doctor",
    "FrameworkLayer": "native",
    "FrozenSelectionError": "errors",
    "NotSupported": "errors",
    "OpArgumentError": "errors",
    "OpExecutionError": "errors",
    "OpImpl": "types",
    "OpManager": "manager",
    "OpRegistry": "registry",
    "OpSpec": "ops.spec",
    "PlatformRecord": "platforms",
    "RegistrationError": "errors",
    "Report": "report",
    "Sample": "ops.spec",
    "SeamError": "errors",
    "Selection": "selection",
    "SelectionError": "errors",
    "SelectionPolicy": "policy",
    "Site": "site",
    "Tolerance": "ops.spec",
    "UnknownOperatorError": "errors",
    "Vendor": "vendor",
    "VendorRecord": "discovery",
    "call_op": "runtime",
    "compile_refusal": "compiled",
    "compiled_call": "compiled",
    "default_manager": "runtime",
    "device_platforms": "platforms",
    "explain": "runtime",
    "format_report": "report_text",
    "installed_vendors": "discovery",
    "load_config": "config",
    "policy_context": "runtime",
    "replace_aten": "runtime",
    "resolve_op": "runtime",
    "rotary_arguments": "native",
    "select": "selection",
    "standard_rotary": "native",
    "wait_for_report": "report_file",
}

__all__ = [*_HOME, "ops"]


def __getattr__(name: str) -> Any:
    if name == "ops":
        return importlib.import_module("fl_dispatch.ops")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"fl_dispatch.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
