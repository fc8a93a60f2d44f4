# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations
from typing import Any
def config_arguments() -> dict[str, Any]:
    from vllm_fl_adapter.bridges import OPERATOR_ALIASES

    return {"operator_aliases": OPERATOR_ALIASES}
