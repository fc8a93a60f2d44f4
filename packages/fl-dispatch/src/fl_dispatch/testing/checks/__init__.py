# SPDX-License-Identifier: Apache-2.0
"""The checks, one module each, with ``cases(target)``."""
