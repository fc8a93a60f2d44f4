# SPDX-License-Identifier: Apache-2.0
"""``fl_dispatch.types`` under its older path."""

from __future__ import annotations

from fl_dispatch import BackendImplKind as BackendImplKind
from fl_dispatch import BackendPriority as BackendPriority
from fl_dispatch import OpImpl as OpImpl
