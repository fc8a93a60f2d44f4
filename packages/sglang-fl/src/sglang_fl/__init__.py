# SPDX-License-Identifier: Apache-2.0
"""SGLang through fl-dispatch. The two entry points SGLang calls; everything else loads when they run.

``import sglang_fl`` needs neither SGLang nor torch.
"""

from __future__ import annotations

__version__ = "0.1.0"


def load_plugin() -> None:
    """Entry point of ``sglang.srt.plugins``, called once in every SGLang process before its work starts.

    Raises SystemExit when the settings are wrong or the seam is not found: SGLang logs and ignores ordinary exceptions of
    plug-ins, and would then serve without the operators that were asked for.
    """
    from sglang_fl.plugin import install

    install()


def activate_platform() -> str | None:
    """Entry point of ``sglang.srt.platforms``: the class name of a platform for this machine, or None to stay out of the way."""
    from sglang_fl.platform_choice import platform_class_name

    return platform_class_name()
