# SPDX-License-Identifier: Apache-2.0
"""A vendor that imports its SDK when it is loaded, where there is none."""

import planted_faults_sdk  # noqa: F401  (does not exist: that is the fault)


def register(registry):
    """Never reached."""
