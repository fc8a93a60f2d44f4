# SPDX-License-Identifier: Apache-2.0
"""``fl_dispatch.backends`` under its older path."""

from __future__ import annotations

from fl_dispatch import Backend as Backend
