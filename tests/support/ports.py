# SPDX-License-Identifier: Apache-2.0
"""A port for a server of a test."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """A free one below those that systems hand out: SGLang adds 10,000 for another server, and that has to be a port too."""
    for port in random.sample(range(20_000, 22_000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("none of a hundred ports from 20000 to 22000 is free")
