# SPDX-License-Identifier: Apache-2.0
"""The names of ``fl_dispatch`` under the path older vendor code was written for. New code imports ``fl_dispatch``."""

from __future__ import annotations

from fl_dispatch import (
    Backend as Backend,
    BackendImplKind as BackendImplKind,
    BackendPriority as BackendPriority,
    OpImpl as OpImpl,
    OpManager as OpManager,
    OpRegistry as OpRegistry,
    SelectionPolicy as SelectionPolicy,
    call_op as call_op,
    policy_context as policy_context,
    resolve_op as resolve_op,
)
