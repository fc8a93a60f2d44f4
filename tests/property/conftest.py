# SPDX-License-Identifier: Apache-2.0
"""How hypothesis runs: without deadlines, because shared machines are slow now and then.

``--hypothesis-profile=thorough`` looks harder.
"""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("fl-dispatch", deadline=None, print_blob=True, max_examples=60)
settings.register_profile("thorough", deadline=None, print_blob=True, max_examples=2000)
settings.load_profile("fl-dispatch")
