# SPDX-License-Identifier: Apache-2.0
import torch


def rotary_embedding_my_old_chip(obj, query, key, cos, sin, position_ids, rotary_interleaved=False, inplace=True):
    cos = cos[position_ids].unsqueeze(1)
    sin = sin[position_ids].unsqueeze(1)
    return _rotate(query, cos, sin, rotary_interleaved), _rotate(key, cos, sin, rotary_interleaved)


def _rotate(x, cos, sin, interleaved):
    width = cos.shape[-1] * 2
    turned, rest = x[..., :width], x[..., width:]
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    if interleaved:
        a, b = turned[..., ::2], turned[..., 1::2]
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    else:
        a, b = turned.chunk(2, -1)
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    return torch.cat((turned, rest), -1)
