# SPDX-License-Identifier: Apache-2.0
"""In the launcher, when SGLang's arguments are known: check what the policy names, say where workers will have no plug-in."""

from __future__ import annotations

import logging
from typing import Any

from fl_dispatch import SeamError, default_manager
from sglang_fl.plugin import installed
from sglang_fl.versions import installed_version

logger = logging.getLogger("sglang_fl")

#: Called once, in the process that starts the workers, by every version.
TARGET = ("sglang.srt.server_args", "ServerArgs.check_server_args")


def before_check(server_args: Any, *args: Any, **kwargs: Any) -> None:
    """BEFORE hook of ``check_server_args``. What it raises stops the start-up: SeamError under ``strict``, ConfigError where the
    policy names an implementation that nothing has, as a policy tuned on another machine may.
    """
    here = installed()
    if here is not None and not here.config.is_off:
        # Filling it checks the names; workers would do so when their first layer is bound.
        _ = default_manager().registry
    if not getattr(server_args, "use_ray", False):
        return
    text = f"SGLang {installed_version()} loads no plug-in in the workers that --use-ray starts: they serve without our operators"
    if here is not None and here.config.policy.strict:
        raise SeamError(f"strict, and {text}; leave --use-ray out, or turn strict off")
    logger.warning("%s; leave --use-ray out to have them", text)
