# SPDX-License-Identifier: Apache-2.0
"""For ``pytest.importorskip``: importing it fails where SGLang Diffusion takes no plug-ins. Nothing of SGLang is imported."""

from sglang_fl.diffusion.doctor import FIRST
from sglang_fl.versions import installed_version, release

if release(installed_version()) < FIRST:
    raise ImportError(f"SGLang Diffusion takes plug-ins from 0.5.21 on; this is {installed_version()}")
