# SPDX-License-Identifier: Apache-2.0
"""vLLM through fl-dispatch. The entry points vLLM calls; everything else loads when they run.

``import vllm_fl_adapter`` needs neither vLLM nor torch: vLLM logs and ignores a plug-in that cannot be imported.
"""

from __future__ import annotations

__version__ = "0.1.0"


def load_plugin() -> None:
    """Entry point of ``vllm.general_plugins``, called in every vLLM process, in some of them several times.

    Raises:
        FLDispatchError: the settings are wrong, or this vLLM has no place where its layers can be taken over. vLLM passes it
            on, so that nothing is served without the operators that were asked for.
    """
    from vllm_fl_adapter.plugin import install

    install()


def activate_platform() -> str | None:
    """Entry point of ``vllm.platform_plugins``: a platform with the facts of an installed vendor whose device is here."""
    from vllm_fl_adapter.platform_choice import vendor_platform

    return vendor_platform()


def activate_cpu_platform() -> str | None:
    """Entry point of ``vllm.platform_plugins``: the example platform, where ``VLLM_PLUGINS`` names it; None otherwise."""
    from vllm_fl_adapter.platform_choice import cpu_platform

    return cpu_platform()
