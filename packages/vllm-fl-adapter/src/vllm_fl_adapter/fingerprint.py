# SPDX-License-Identifier: Apache-2.0
"""A digest of everything that decides what a compiled graph holds of us, for vLLM's compile cache.

vLLM keeps compiled graphs on disk under a hash of its configuration and of the files it traced, and drops the guards of
torch.compile: without this a graph compiled with one selection would be run under another.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fl_dispatch
import vllm_fl_adapter
from fl_dispatch import Config, OpManager

#: The entry in vLLM's ``additional_config``, which is part of the hash.
KEY = "fl_dispatch"


def fingerprint(manager: OpManager, config: Config) -> str:
    """16 hexadecimal digits: policy, lists, device, each candidate with its verdict, and the code of the implementations."""
    content = {
        "versions": [fl_dispatch.__version__, vllm_fl_adapter.__version__],
        "policy": config.policy.as_dict(),
        "white": config.oot_whitelist and sorted(config.oot_whitelist),
        "black": sorted(config.oot_blacklist),
        "device": manager.device_type,
        "candidates": {
            name: [_candidate(c) for c in manager.select(name).candidates] for name in manager.registry.op_names()
        },
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _candidate(candidate: Any) -> list[str]:
    impl = candidate.impl
    said = [
        impl.impl_id,
        candidate.accepted,
        candidate.reason,
        impl.registered_by,
        impl.traceable,
        impl.mutates,
        impl.dtypes,
    ]
    said += [impl.reads, sorted(impl.honours.items())]
    return [*map(_text, said), _code(impl.fn)]


def _text(value: Any) -> str:
    """A set prints in another order in each process."""
    if isinstance(value, (set, frozenset)):
        return str(sorted(map(str, value)))
    if isinstance(value, (list, tuple)):
        return str([_text(part) for part in value])
    return str(value)


def _code(function: Any) -> str:
    """The code a graph may have taken in: all Python files of the package that defines the implementation."""
    module = sys.modules.get(getattr(inspect.unwrap(function), "__module__", None) or "")
    top = sys.modules.get(module.__name__.partition(".")[0]) if module is not None else None
    return "" if top is None else _package_digest(top.__name__)


@functools.cache
def _package_digest(name: str) -> str:
    digest = hashlib.sha256()
    for path in _files(sys.modules[name]):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _files(module: Any) -> Iterator[Path]:
    if module.__name__ == "torch":  # large, and part of vLLM's hash
        return
    folders = [Path(folder) for folder in getattr(module, "__path__", ())]
    for folder in folders:
        yield from sorted(folder.rglob("*.py"))
    file = getattr(module, "__file__", None)
    if not folders and file and Path(file).is_file():
        yield Path(file)
