# SPDX-License-Identifier: Apache-2.0
"""Three ranks on the CPU: the model's 9 heads and 3 key-value heads are spread over them, joined through gloo."""

from __future__ import annotations

import dataclasses

import pytest
from engine import CALLS_PER_FORWARD, Run, serve

pytestmark = pytest.mark.sglang

RANKS = range(3)


@pytest.fixture(scope="module")
def three_ranks(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return serve(
        tmp_path_factory.mktemp("ranks"),
        # SGLang wants a set of cores for every rank where there are more ranks than NUMA nodes.
        {"SGLANG_CPU_OMP_THREADS_BIND": "|".join("0" for _ in RANKS)},
        new_tokens=8,
        engine={"tp_size": len(RANKS)},
        ranks=[f"rank{rank}" for rank in RANKS],
    )


def test_three_ranks_serve_the_tokens_of_hugging_face(three_ranks: Run) -> None:
    assert three_ranks.equal == 2


def test_every_rank_reports_and_ran_every_operator_for_every_layer(three_ranks: Run) -> None:
    assert [report["rank"] for report in three_ranks.reports] == list(RANKS)
    assert len({report["pid"] for report in three_ranks.reports}) == len(RANKS)
    for report in three_ranks.reports:
        run = dataclasses.replace(three_ranks, report=report)
        assert run.ran() == run.expected(dict.fromkeys(CALLS_PER_FORWARD, "reference"))
        assert run.left() == set()


def test_every_rank_prints_its_table(three_ranks: Run) -> None:
    for rank in RANKS:
        assert f"scheduler rank {rank}, cpu" in three_ranks.log


def test_the_number_of_a_data_parallel_replica_is_found_where_sglang_keeps_it() -> None:
    """Up to 0.5.20 the scheduler's argument, from 0.5.21 on in SGLang's context."""
    from sglang.srt.runtime_context import get_parallel

    from sglang_fl.worker import _data_parallel_rank

    def early(self: object, server_args: object, dp_rank: int | None) -> None: ...

    def late(self: object, server_args: object) -> None: ...

    assert _data_parallel_rank(early, (None, None, 1), {}) == 1
    assert _data_parallel_rank(early, (None, None), {"dp_rank": None}) is None
    with get_parallel().override(dp_rank=2):
        assert _data_parallel_rank(late, (None, None), {}) == 2
