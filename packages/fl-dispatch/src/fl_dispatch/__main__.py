# SPDX-License-Identifier: Apache-2.0
"""``python -m fl_dispatch`` is ``fl-dispatch``."""

import sys

from fl_dispatch.cli import main

sys.exit(main())
