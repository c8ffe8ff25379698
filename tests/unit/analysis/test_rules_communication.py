"""Rules about communication: what is exposed, and whether a late rank or the transfer is the cause."""

import dataclasses

import pytest
from support.timelines import timeline

from analysis.diagnose.finding import Finding
from analysis.diagnose.rules_communication import findings, no_communication
from analysis.timeline import Timeline

MS = 1_000_000
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"
NAMES = ["all_reduce_by_rank", "collectives", "stragglers", "buckets", "clock_offsets"]


def rules(*timelines: Timeline) -> dict[str, Finding]:
    """Return findings by name, after a check of their form."""
    every = findings(timelines)
    for one in every:
        assert one.title and len(one.advice) <= 1 and "nan" not in one.sentence, one.sentence
        assert len(one.sentence.split()) <= 20, one.sentence
    return {one.name: one for one in every}


def late(rank: int, world_size: int = 2) -> Timeline:
    """Rank 0 computes 70 ms and waits in an all-reduce from 70 to 95 for rank 1, which comes at 90: 20 + 5 ms."""
    begin, arrives = (0, 70) if rank == 0 else (20, 90)
    return timeline(
        rank,
        steps=[(1, 0, 100 * MS)],
        kernels=[("gemm", 7, begin * MS, arrives * MS), (NCCL, 20, arrives * MS, 95 * MS)],
        collectives=[("all_reduce", arrives * MS, 95 * MS, 10**8, -1, 20, "0", 2, 1)],
        world_size=world_size,
    )


def test_one_late_rank_is_the_advice_where_others_wait_for_it() -> None:
    found = rules(late(0), late(1))
    assert list(found) == NAMES
    (one,) = found["all_reduce_by_rank"].advice
    assert (one.cause, one.saves) == ("waiting", pytest.approx(0.1)) and "rank 1" in one.seen  # 20 of 2 x 100 ms
    (alone,) = rules(late(0))["all_reduce_by_rank"].advice  # one rank does not say what is waiting
    assert (alone.cause, alone.saves) == ("communication", pytest.approx(0.25))


def test_ranks_that_are_late_by_turns_are_no_straggler_but_exposed_communication() -> None:
    """Rank 0 comes 50 ms late to the first all-reduce, rank 1 60 ms to the second: 45 and 55 % of the waiting.

    Exposed are 50 + 120 ms on rank 0 and 100 + 60 on rank 1, of windows of 300 ms.
    """
    talks = {0: [(50, 100), (140, 260)], 1: [(0, 100), (200, 260)]}
    ranks = [
        timeline(rank, world_size=2, kernels=[("gemm", 7, 260 * MS, 300 * MS),
                 *((NCCL, 9, s * MS, e * MS) for s, e in spans)], steps=[(0, 0, 300 * MS)],
                 collectives=[("all_reduce", s * MS, e * MS, 100, -1, 9, "g", 2, n) for n, (s, e) in enumerate(spans)])
        for rank, spans in talks.items()
    ]  # fmt: skip
    found = rules(*ranks)
    (one,) = found["all_reduce_by_rank"].advice
    assert (one.cause, one.saves) == ("communication", pytest.approx(330 / 600))
    first = found["stragglers"].table.iloc[0]
    assert (first["rank"], first["times_last"], first["wait_caused_ms"]) == (1, 1, 60)


def test_the_gain_is_the_exposed_share_and_little_is_not_advised_for() -> None:
    hidden = timeline(
        steps=[(0, 0, 100 * MS)],
        kernels=[("gemm", 7, 0, 100 * MS), (NCCL, 20, 0, 50 * MS)],
        collectives=[("all_reduce", 0, 50 * MS, 8)],
    )
    assert not rules(hidden)["all_reduce_by_rank"].advice
    outside = timeline(collectives=[("all_reduce", 0, 50 * MS, 8)], operators=[("aten::mm", 50 * MS, 100 * MS)])
    (one,) = rules(outside)["all_reduce_by_rank"].advice
    assert one.saves == pytest.approx(0.5)


def test_without_communication_there_is_a_reason_and_no_finding() -> None:
    trace = timeline(kernels=[("gemm", 0, 0, 10)])
    assert findings([trace]) == []
    assert no_communication([trace]) != no_communication([dataclasses.replace(trace, world_size=1)])


def test_lone_collectives_without_length_and_what_ranks_may_leave_early_give_a_result() -> None:
    trace = timeline(
        kernels=[("<script>nccl", 7, 5, 5, 1)], collectives=[("all_reduce", 5, 5, 1 << 62, 1)], api=[("x", 5, 5, 1)]
    )
    assert list(rules(trace, trace)) == NAMES
    ranks = [
        timeline(rank, kernels=[("ncclDevKernel_Broadcast", 7, 0, 50), ("gemm", 8, 50, 100)],
                 collectives=[("broadcast", 0, 50, 100, -1, 7, "g", 2, 1)], world_size=2)
        for rank in (0, 1)
    ]  # fmt: skip
    found = rules(*ranks)
    assert found["all_reduce_by_rank"].table["exposed_wait_ms"].isna().all()
    assert not found["stragglers"].table["times_last"].any()
