# SPDX-License-Identifier: Apache-2.0
import torch


def rms_norm_my_old_chip(obj, x: torch.Tensor, residual: torch.Tensor | None = None):
    summed = x.float() if residual is None else x.float() + residual.float()
    scale = torch.rsqrt(summed.square().mean(-1, keepdim=True) + obj.variance_epsilon)
    if getattr(obj, "cast_x_before_out_mul", False) and not getattr(obj, "cast_x_to_weight_dtype", False):
        normed = (summed * scale).to(x.dtype) * obj.weight  # in the wider of both dtypes
    else:
        normed = (summed * scale * obj.weight).to(x.dtype)
    return normed if residual is None else (normed, summed.to(x.dtype))
