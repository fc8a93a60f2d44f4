# SPDX-License-Identifier: Apache-2.0
"""The scripts of the GPU benchmark are importable here; at the end, so that their names hide no module of other tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "gpu"))
