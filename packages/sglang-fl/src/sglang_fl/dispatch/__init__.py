# SPDX-License-Identifier: Apache-2.0
"""The names of ``fl_dispatch`` under the path older vendor code was written for. New code imports ``fl_dispatch``."""

from __future__ import annotations

from fl_dispatch import (
    Backend as Backend,
)
from fl_dispatch import (
    BackendImplKind as BackendImplKind,
)
from fl_dispatch import (
    BackendPriority as BackendPriority,
)
from fl_dispatch import (
    OpImpl as OpImpl,
)
from fl_dispatch import (
    OpManager as OpManager,
)
from fl_dispatch import (
    OpRegistry as OpRegistry,
)
from fl_dispatch import (
    SelectionPolicy as SelectionPolicy,
)
from fl_dispatch import (
    call_op as call_op,
)
from fl_dispatch import (
    policy_context as policy_context,
)
from fl_dispatch import (
    resolve_op as resolve_op,
)
