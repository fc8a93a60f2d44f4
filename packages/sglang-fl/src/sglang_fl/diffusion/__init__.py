# SPDX-License-Identifier: Apache-2.0
"""SGLang Diffusion (``sglang.multimodal_gen``, from SGLang 0.5.21 on) through fl-dispatch. Its two entry points.

Reading order: ``choice`` (which platform), ``platform`` and ``own_platform`` (the two there are), ``backend`` (what a worker
does before anything is built), ``forwards`` and ``bridges`` (its layers), ``worker`` (once the model is there).
"""

from __future__ import annotations


def activate() -> str | None:
    """Entry point of ``sglang.multimodal_gen.platforms``: the class name of a platform for this machine, or None to stay out
    of the way.

    Raises FLDispatchError when the settings are wrong, which aborts the start: SGLang does not fall back.
    """
    from sglang_fl.diffusion.choice import platform_class_name

    return platform_class_name()


def register_hooks() -> None:
    """Entry point of ``sglang.multimodal_gen.plugins``, called once in every process where our platform is the selected one;
    on other platforms a distribution that offers none may name it as well.
    """
    from sglang_fl.diffusion.worker import register

    register()
