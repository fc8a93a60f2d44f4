# SPDX-License-Identifier: Apache-2.0
"""SGLang's deterministic modes fix the kernels to use; a dispatched operator would break their promise."""

from __future__ import annotations

from typing import Any


def deterministic_mode() -> str | None:
    """The deterministic mode SGLang runs in, as a reason to leave layers to it; None in normal operation."""
    from sglang.srt.batch_invariant_ops import is_batch_invariant_mode_enabled

    if is_batch_invariant_mode_enabled():
        return "SGLang's batch-invariant mode is on"
    target = _rl_on_policy_target()
    return f"SGLang's rl_on_policy_target={target} fixes the kernels" if target is not None else None


def _rl_on_policy_target() -> Any:
    """Where SGLang keeps the setting changed from the global server arguments to its runtime context."""
    try:
        from sglang.srt.runtime_context import get_exec, publish_role
    except ImportError:
        pass
    else:
        return get_exec().deterministic.rl_on_policy_target if publish_role() is not None else None
    from sglang.srt.server_args import get_global_server_args

    try:
        return getattr(get_global_server_args(), "rl_on_policy_target", None)
    except ValueError:  # no server arguments in this process: a layer used on its own
        return None
