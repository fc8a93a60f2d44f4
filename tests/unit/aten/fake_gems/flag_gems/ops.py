# SPDX-License-Identifier: Apache-2.0
"""Kernels that can be told from PyTorch's by how often they were called."""

from collections import Counter

import torch

calls: Counter = Counter()


def neg(x):
    calls["neg"] += 1
    return torch.sub(torch.zeros_like(x), x)


def mul(x, y):
    calls["mul"] += 1
    return torch.div(x, torch.reciprocal(torch.as_tensor(y, dtype=x.dtype)))


def square(x):
    calls["square"] += 1
    return x * x


def relu(x):
    calls["relu"] += 1
    return torch.maximum(x, torch.zeros_like(x))


def index_select(x, dim, index):
    calls["index_select"] += 1
    return torch.ops.aten.index.Tensor(x, [None] * dim + [index])
