# SPDX-License-Identifier: Apache-2.0
"""``Backend``: base class of a vendor's operator set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Backend(ABC):
    """A vendor's operators as methods, one a standard operator, each with the standard signature.

    Implement ``name``, ``is_available`` and a method for every operator your chip has a kernel for. Import your SDK
    inside the methods, never at module level. A method you leave out is refused by name when it is registered, and the
    others work.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The vendor's name, equal to the entry point's."""

    @abstractmethod
    def is_available(self) -> bool:
        """Whether the SDK can be used in this process. Called once, where operators run; may import the SDK."""

    def unavailable_reason(self) -> str | None:
        """One line for people when ``is_available`` says no, for example the SDK's own error; None: nothing to add."""
        return None

    def __getattr__(self, attribute: str) -> Any:
        """A method that was not written does not stop the registration of the others: the registry refuses it alone."""
        from fl_dispatch import ops

        if attribute not in ops.STANDARD_OPERATORS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {attribute!r}")
        reason = (
            f"{type(self).__name__} has no method {attribute}(); "
            f"implement it, or leave {attribute!r} out of what you register"
        )

        def missing(*args: Any, **kwargs: Any) -> Any:
            raise AttributeError(reason)

        missing._missing_method = reason  # type: ignore[attr-defined]  # what the registry looks at
        return missing
