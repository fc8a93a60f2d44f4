# SPDX-License-Identifier: Apache-2.0
"""The repository's one tool: environments, the small model, the demo and the tests. `python3.11 tools/fl.py --help`."""

from __future__ import annotations

import signal
import sys

# Checked before the rest is imported: an older Python should get this sentence and not a syntax error.
if sys.version_info < (3, 11):  # noqa: UP036 - this file is run by whatever Python the user has
    sys.exit(f"error: tools/fl.py needs Python 3.11 or newer; this is {sys.version.split()[0]} ({sys.executable})")

from fltool.cli import main

if __name__ == "__main__":
    # CI ends a job with SIGTERM; treated like Ctrl-C, so that engines and their workers are ended as well.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
