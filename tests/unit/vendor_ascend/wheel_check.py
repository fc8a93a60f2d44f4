# SPDX-License-Identifier: Apache-2.0
"""Check the vendor's calls against a wheel of torch_npu itself: ``python wheel_check.py WHEEL``, with the vendor's source on
the path. No NPU, no CANN.

The wheel is read, not installed. Its schemas are defined in torch's dispatcher, its own meta registrations are executed
beside stand-ins for the modules they import, and every sample of every operator goes through both on meta tensors. The
schemas and results that torch_npu_operators.toml states are compared with what the wheel says.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from calls_checked import DTYPES, accepted, check_meta
from npu_stand_in import FACTS, OPERATORS, on_meta, results_of

from fl_vendor_ascend import sdk
from fl_vendor_ascend.operators import implementations

SCHEMAS = "torch_npu/csrc/aten/npu_native_functions_by_codegen.yaml"
META = "torch_npu/op_plugin/meta/_meta_registrations.py"


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def schemas(content: zipfile.ZipFile) -> dict[str, str]:
    """Name to schema of the operators that are called."""
    text = content.read(SCHEMAS).decode()
    found = re.findall(r"func: (([a-z0-9_]+)\(.*)", text)
    return {name: schema for schema, name in found if name in OPERATORS}


def stand_ins() -> None:
    """The modules that the meta registrations import, without what needs CANN."""
    for name in ("torch_npu", "torch_npu.utils", "torch_npu.utils._error_code", "torch_npu.npu"):
        sys.modules[name] = ModuleType(name)
    sys.modules["torch_npu.npu.utils"] = utils = ModuleType("torch_npu.npu.utils")
    sys.modules["torch_npu.npu._backends"] = backends = ModuleType("torch_npu.npu._backends")
    utils.get_cann_version = lambda *_: "8.5.0"  # type: ignore[attr-defined]
    backends.get_soc_version = lambda: 220  # type: ignore[attr-defined]
    codes: Any = sys.modules["torch_npu.utils._error_code"]
    codes.ErrCode, codes.ops_error = type("ErrCode", (), {"__getattr__": lambda *_: 0})(), lambda *_: ""


def registrations(source: str) -> ast.Module:
    """Of the file, which registers hundreds of others that are not defined here: the functions for these operators,
    and what stands before the first one."""
    module = ast.parse(source)
    names = {repr(name) for name in OPERATORS}
    wanted, before = [], True
    for node in module.body:
        decorated = isinstance(node, ast.FunctionDef) and bool(node.decorator_list)
        before = before and not decorated
        if before or (decorated and any(name in ast.unparse(node.decorator_list[0]) for name in names)):
            wanted.append(node)
    module.body = wanted
    return module


def main(path: str) -> int:
    wheel = Path(path)
    with zipfile.ZipFile(wheel) as content:
        found = schemas(content)
        meta = content.read(META).decode()
    library = torch.library.Library("npu", "DEF")
    for schema in found.values():
        library.define(schema)
    stand_ins()
    keeps_libraries: dict[str, Any] = {"__name__": "torch_npu.op_plugin.meta._meta_registrations"}
    exec(compile(registrations(meta), META, "exec"), keeps_libraries)
    for name in found:
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"npu::{name}", "Meta"):
            say(f"  {name} has no meta registration: its schema alone is checked")
            library.impl(name, functools.partial(on_meta, name), "Meta")

    class Kernels:
        def __getattr__(self, name: str) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                out = getattr(torch.ops.npu, name)(*args, **kwargs)
                several = out if isinstance(out, (tuple, list)) else (out,)
                for one, want in zip(several, results_of(name, args, kwargs), strict=True):
                    assert (one.shape, one.dtype) == (want.shape, want.dtype), f"{name}: {one.shape} {one.dtype}"
                counts[name] += 1
                return out

            return call

    counts = dict.fromkeys(OPERATORS, 0)
    sdk.load = Kernels
    for impl in implementations():
        for dtype in DTYPES:
            for sample in accepted(impl, dtype):
                check_meta(impl, sample)
    say(f"{wheel.name}, torch {torch.__version__}: calls checked {counts}")
    others = {name: schema for name, schema in found.items() if schema != OPERATORS[name]["schema"]}
    for name, schema in others.items():
        say(f"  {name} differs from {FACTS['version']}: {schema}")
    same_version = f"-{FACTS['version']}-" in wheel.name
    return int(not all(counts.values()) or (same_version and bool(others)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
