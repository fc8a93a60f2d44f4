# SPDX-License-Identifier: Apache-2.0
"""What torch keeps for the whole process or thread, which no operator may change."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class TorchState:
    """The settings at one moment.

    Args:
        dtype: the default dtype.
        grad: whether gradients are recorded.
        generator: state of the CPU's random number generator, uint8.
    """

    dtype: torch.dtype
    grad: bool
    generator: torch.Tensor

    @classmethod
    def now(cls) -> TorchState:
        """As it is."""
        return cls(torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_rng_state())

    def restore(self) -> None:
        """Make it so again."""
        torch.set_default_dtype(self.dtype)
        torch.set_grad_enabled(self.grad)
        torch.set_rng_state(self.generator)

    def changed(self) -> list[str]:
        """In words, what is no longer so."""
        now = TorchState.now()
        words = []
        if now.dtype != self.dtype:
            words.append(f"torch's default dtype ({self.dtype} became {now.dtype})")
        if now.grad != self.grad:
            words.append(f"the grad mode ({self.grad} became {now.grad})")
        if not torch.equal(now.generator, self.generator):
            words.append("the state of the CPU's random number generator")
        return words
