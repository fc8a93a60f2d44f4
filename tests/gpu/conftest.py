# SPDX-License-Identifier: Apache-2.0
"""Everything here needs a CUDA device. ``calls`` is importable."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True)
def serving_conditions() -> Iterator[None]:
    with torch.no_grad():
        yield
    torch.cuda.synchronize()  # a kernel's fault belongs to the test that launched it
