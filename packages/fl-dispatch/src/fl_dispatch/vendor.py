# SPDX-License-Identifier: Apache-2.0
"""``Vendor``: what an entry point of the group ``fl_dispatch.vendors`` may be, besides a ``register(registry)``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fl_dispatch.registry import OpRegistry

#: Versions of the vendor interface this core understands. A bare ``register(registry)`` function is version 1.
SUPPORTED_API_VERSIONS = (1,)

#: The entry-point group vendor distributions register in.
VENDOR_GROUP = "fl_dispatch.vendors"


@dataclass(frozen=True)
class Vendor:
    """A vendor's distribution.

    Args:
        name: the vendor's name; must equal the entry point's name.
        register: adds the vendor's implementations to a registry. It must not import the vendor's SDK.
        api_version: version of this interface the distribution was written for.
    """

    name: str
    register: Callable[[OpRegistry], None]
    api_version: int = 1
