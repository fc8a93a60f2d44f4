# SPDX-License-Identifier: Apache-2.0
"""What a framework's rotary layer gives back, for kernels that rotate in place and for those that do not."""

from __future__ import annotations

from typing import Any

import torch


def check_results(
    layer: Any, site: Any, arguments: tuple[Any, torch.Tensor, torch.Tensor], wanted: Any, inplace: bool
) -> None:
    """A kernel in place hands query and key back as they are, any other new tensors of their shape.

    Args:
        layer: bound to ``site``, which runs the reference.
        site: gets a kernel that is ``inplace`` or not.
        arguments: of the layer: positions, query, key.
        wanted: what the framework's own method makes of them.
        inplace: which kind of kernel.
    """
    reference = site.fn

    def kernel(obj: Any, q: torch.Tensor, k: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        new_q, new_k = reference(obj, q, k, *rest)
        return (q.copy_(new_q), k.copy_(new_k)) if inplace else (new_q, new_k)

    site.fn = kernel
    found = layer(*arguments)
    assert [a is b for a, b in zip(found, arguments[1:], strict=True)] == [inplace, inplace]
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.equal(ours, theirs)
