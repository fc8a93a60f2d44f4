# SPDX-License-Identifier: Apache-2.0
"""Tensors that go into an operator: how samples draw them, and what can be wrong with given ones.

Every ``no_*`` and ``missing_*`` function returns None when all is well and one sentence when not, so that a check is
a chain of ``or``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from fl_dispatch.ops.spec import Field

# Numbers beyond this many standard deviations are clamped: bounds on the input are part of the tolerances' reasons.
CLAMP = 4.0


class Draw:
    """Random tensors of one dtype on one device.

    Equal seeds give equal tensors on every device: numbers are drawn in float32 on the CPU and moved. The generator
    is its own; the global random state is neither read nor changed.
    """

    def __init__(self, dtype: torch.dtype, device: str, seed: int) -> None:
        self.dtype = dtype
        self.device = device
        self._generator = torch.Generator().manual_seed(seed)

    def normal(
        self, *shape: int, scale: float = 1.0, mean: float = 0.0, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """``mean + scale * z``, z standard normal and clamped to +-4."""
        z = torch.randn(shape, generator=self._generator).clamp_(-CLAMP, CLAMP)
        return self._place(z * scale + mean, dtype)

    def signed(self, *shape: int, low: float, high: float, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Magnitudes uniform in [low, high], either sign."""
        magnitude = torch.rand(shape, generator=self._generator) * (high - low) + low
        sign = torch.randint(0, 2, shape, generator=self._generator) * 2 - 1
        return self._place(magnitude * sign, dtype)

    def integers(self, *shape: int, high: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """Uniform in [0, high)."""
        return self._place(torch.randint(0, high, shape, generator=self._generator), dtype)

    def _place(self, values: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        return values.to(dtype or self.dtype).to(self.device)


def rows_apart(values: torch.Tensor, gap: int = 8) -> torch.Tensor:
    """The same values as a view whose rows lie ``gap`` elements further apart.

    The gaps hold NaN, so that a kernel which ignores strides is found out.
    """
    wide = values.new_full((*values.shape[:-1], values.shape[-1] + gap), float("nan"))
    view = wide[..., : values.shape[-1]]
    return view.copy_(values)


def transposed(values: torch.Tensor) -> torch.Tensor:
    """The same values in a layout whose first dimension is not the slowest one: dimensions 0 and 1 are swapped."""
    return values.transpose(0, 1).contiguous().transpose(0, 1)


def missing_field(operator: str, obj: Any, fields: Iterable[Field]) -> str | None:
    """A required field that ``obj`` does not have, or has as None."""
    for field in fields:
        if not field.required:
            continue
        if not hasattr(obj, field.name):
            return (
                f"{operator} reads obj.{field.name} ({field.meaning}), but {type(obj).__name__} has no such attribute"
            )
        if getattr(obj, field.name) is None:
            return f"{operator} reads obj.{field.name} ({field.meaning}), but it is None"
    return None


def no_float_tensor(name: str, value: Any) -> str | None:
    """``value`` is not a floating point tensor."""
    if not isinstance(value, torch.Tensor):
        return f"{name} must be a tensor, not {type(value).__name__}"
    if not value.is_floating_point():
        return f"{name} must have a floating point dtype, not {value.dtype}"
    return None


def no_common_device(**tensors: torch.Tensor | None) -> str | None:
    """The tensors do not all lie on the first one's device."""
    present = [(name, tensor) for name, tensor in tensors.items() if tensor is not None]
    first_name, first = present[0]
    for name, tensor in present[1:]:
        if tensor.device != first.device:
            return f"{first_name} is on {first.device} but {name} is on {tensor.device}"
    return None


def shape_of(tensor: torch.Tensor) -> str:
    """The shape as messages print it: ``[3, 64]``."""
    return str(list(tensor.shape))
