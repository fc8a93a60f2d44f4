# SPDX-License-Identifier: Apache-2.0
"""The conformance kit: what every implementation of a vendor has to get right, as tests.

``pytest --fl-vendor NAME`` runs it, or a file of three lines in the vendor's own tests::

    from fl_dispatch.testing import vendor_conformance

    test_conformance = vendor_conformance("my_chip")

Importing this imports neither pytest nor torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["vendor_conformance"]


def vendor_conformance(vendor: str, *, operators: Sequence[str] = (), device: str | None = None) -> Callable[[], None]:
    """All checks of all implementations of an installed vendor, one pytest item each.

    Args:
        vendor: the name of its entry point; ``"flagos"`` and ``"reference"`` are the built-in kinds.
        operators: of these only; all that the vendor registers when empty.
        device: where to run, for example ``"cuda"``; the option ``--fl-device`` or this machine's accelerator when None.

    Returns:
        What to assign to a name that pytest collects (``test_...``). The kit's pytest plug-in puts the checks in its
        place; without the plug-in it is one test, which fails and says so.
    """

    def conformance() -> None:
        raise RuntimeError(
            "the pytest plug-in of fl-dispatch is not loaded, so nothing was checked; "
            "run pytest with -p fl_dispatch.testing.plugin, or without PYTEST_DISABLE_PLUGIN_AUTOLOAD"
        )

    conformance.fl_conformance = (vendor, tuple(operators), device)  # type: ignore[attr-defined]  # read by the plug-in
    return conformance
