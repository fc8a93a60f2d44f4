# SPDX-License-Identifier: Apache-2.0
"""The server's arguments, for SGLang's layers without a server."""

from __future__ import annotations

import os

from sglang_fl.versions import installed_version, release


def publish_arguments() -> None:
    """Give SGLang the arguments that its layers ask for while they are constructed, in the versions before 0.5.19."""
    if release(installed_version()) >= (0, 5, 19):
        return
    from sglang.srt.server_args import ServerArgs

    arguments = ServerArgs(model_path=os.environ["FL_TEST_MODEL"], device="cpu")
    try:
        from sglang.srt.runtime_context import publish
    except ImportError:
        from sglang.srt.server_args import set_global_server_args_for_scheduler

        set_global_server_args_for_scheduler(arguments)
    else:
        publish(arguments, role="test")
