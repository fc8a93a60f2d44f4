# SPDX-License-Identifier: Apache-2.0
"""The process's own manager, behind the module-level functions. The only module-level state of fl-dispatch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from fl_dispatch.config import Config, load_config
from fl_dispatch.manager import OpManager
from fl_dispatch.policy import SelectionPolicy
from fl_dispatch.selection import DeviceFacts, Selection

if TYPE_CHECKING:
    from fl_dispatch.aten import AtenReplacement

_aten: AtenReplacement | None = None

_MANAGER = OpManager(policy_source=lambda: load_config("FL_DISPATCH_").policy)


def default_manager() -> OpManager:
    """The manager behind ``call_op``, the typed functions and every adapter of this process."""
    return _MANAGER


#: ``call_op("rms_norm", obj, x, residual)``: call one operator by name.
call_op: Callable[..., Any] = _MANAGER.call_op


def replace_aten(config: Config, *, rank: int = 0) -> AtenReplacement:
    """``aten.replace_aten``, once in this process: PyTorch's dispatcher is the process's, and so are its kernels."""
    global _aten
    if _aten is None:
        from fl_dispatch import aten

        _aten = aten.replace_aten(config, rank=rank)
    return _aten


def resolve_op(op_name: str) -> Callable[..., Any]:
    """A function with the operator's standard signature, decided now, that follows later changes of the policy."""
    return _MANAGER.resolve_op(op_name)


def policy_context(policy: SelectionPolicy) -> AbstractContextManager[None]:
    """Use another policy for ``call_op`` and typed functions inside a ``with`` block, in this thread or task only."""
    return _MANAGER.policy_context(policy)


def explain(
    op_name: str,
    *,
    dtype: str | None = None,
    device_type: str | None = None,
    policy: SelectionPolicy | None = None,
    obj: Any = None,
    tokens: int | None = None,
) -> Selection:
    """What would be chosen for one operator, and why not the others. ``print(explain(op).describe())`` reads well.

    ``tokens`` counts where the policy decides by their number; None: more than its last bound.
    """
    from fl_dispatch.facts import facts_for

    known = facts_for(device_type or _MANAGER.device_type, dtype)
    where = DeviceFacts(known.device_type, known.arch, dtype)
    return _MANAGER.select(op_name, obj=obj, facts_=where, policy=policy, tokens=tokens)
