# SPDX-License-Identifier: Apache-2.0
"""fl-dispatch: one operator-dispatch core, so that the same vendor kernels serve SGLang and vLLM on any chip.

Every public name is here and loads when first used: importing this package imports neither torch nor anything heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_dispatch import ops as ops
    from fl_dispatch.backends import Backend as Backend
    from fl_dispatch.config import Config as Config, load_config as load_config
    from fl_dispatch.discovery import VendorRecord as VendorRecord, installed_vendors as installed_vendors
    from fl_dispatch.doctor import Finding as Finding
    from fl_dispatch.errors import (
        ConfigError as ConfigError,
        FLDispatchError as FLDispatchError,
        FrozenSelectionError as FrozenSelectionError,
        NotSupported as NotSupported,
        OpArgumentError as OpArgumentError,
        OpExecutionError as OpExecutionError,
        RegistrationError as RegistrationError,
        SeamError as SeamError,
        SelectionError as SelectionError,
        UnknownOperatorError as UnknownOperatorError,
    )
    from fl_dispatch.manager import OpManager as OpManager
    from fl_dispatch.ops.spec import Field as Field, OpSpec as OpSpec, Sample as Sample, Tolerance as Tolerance
    from fl_dispatch.policy import SelectionPolicy as SelectionPolicy
    from fl_dispatch.registry import OpRegistry as OpRegistry
    from fl_dispatch.report import Report as Report, format_report as format_report, wait_for_report as wait_for_report
    from fl_dispatch.runtime import (
        call_op as call_op,
        default_manager as default_manager,
        explain as explain,
        policy_context as policy_context,
        resolve_op as resolve_op,
    )
    from fl_dispatch.selection import DeviceFacts as DeviceFacts, Selection as Selection, select as select
    from fl_dispatch.site import Site as Site
    from fl_dispatch.types import (
        BackendImplKind as BackendImplKind,
        BackendPriority as BackendPriority,
        OpImpl as OpImpl,
    )
    from fl_dispatch.vendor import Vendor as Vendor

__version__ = "0.1.0"

_HOME = {
    "Backend": "backends",
    "BackendImplKind": "types",
    "BackendPriority": "types",
    "Config": "config",
    "ConfigError": "errors",
    "DeviceFacts": "selection",
    "FLDispatchError": "errors",
    "Field": "ops.spec",
    "Finding": "doctor",
    "FrozenSelectionError": "errors",
    "NotSupported": "errors",
    "OpArgumentError": "errors",
    "OpExecutionError": "errors",
    "OpImpl": "types",
    "OpManager": "manager",
    "OpRegistry": "registry",
    "OpSpec": "ops.spec",
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
    "default_manager": "runtime",
    "explain": "runtime",
    "format_report": "report",
    "installed_vendors": "discovery",
    "load_config": "config",
    "policy_context": "runtime",
    "resolve_op": "runtime",
    "select": "selection",
    "wait_for_report": "report",
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
