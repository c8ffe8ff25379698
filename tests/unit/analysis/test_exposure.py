"""Communication by rank, kind and step: times worked by hand, bandwidths against nccl-tests' log."""

import dataclasses

import pandas as pd
import pytest
from support.timelines import timeline

from analysis.metrics.communication.exposure import (
    all_reduce,
    buckets,
    collective_table,
    communication_by_kind,
    communication_by_rank,
)
from analysis.metrics.communication.matching import match_collectives, stragglers
from analysis.timeline import Timeline

LAUNCH, MS = "cudaLaunchKernel", 1_000_000
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"


def one_rank(rank: int = 0, late: int = 0) -> Timeline:
    """Step 0..100 ms. Computation 0..40 and 60..70, all-reduces 30..50 and 65..90 (begun `late` ms later)."""
    first, second = (30 + late) * MS, (65 + late) * MS
    return timeline(
        rank,
        steps=[(3, 0, 100 * MS)],
        kernels=[
            ("gemm", 0, 0, 40 * MS, 1),
            ("gemm", 0, 60 * MS, 70 * MS, 2),
            (NCCL, 7, first, 50 * MS, 3),
            (NCCL, 7, second, 90 * MS, 4),
            ("Memcpy HtoD", 9, 70 * MS, 95 * MS, 5, "memcpy"),  # hides nothing
        ],
        api=[(LAUNCH, 20 * MS, 21 * MS, 3), (LAUNCH, 61 * MS, 62 * MS, 4)],
        collectives=[
            ("all_reduce", first, 50 * MS, 20_000_000, 3, 7, "0", 2, -1),
            ("all_reduce", second, 90 * MS, 50_000_000, 4, 7, "0", 2, -1),
        ],
        world_size=2,
    )


def with_step(begin: int, end: int) -> Timeline:
    return dataclasses.replace(one_rank(), steps=timeline(steps=[(3, begin * MS, end * MS)]).steps)


def test_overlapped_and_exposed_are_of_unions_and_copies_hide_nothing() -> None:
    row = communication_by_rank([one_rank()]).iloc[0]
    # C = 20 + 25 = 45, K = 40 + 10, both: 30..40 and 65..70 = 15.
    names = ["compute_ms", "communication_ms", "overlapped_ms", "exposed_ms", "communication_share", "exposed_share"]
    assert row[names].tolist() == [50, 45, 15, 30, 0.45, 0.3]
    assert row["overlap_share"] == pytest.approx(1 / 3) and pd.isna(row["exposed_wait_ms"])  # one rank does not say
    kind = communication_by_kind([one_rank()]).iloc[0]
    assert kind[["count", "sized", "bytes", "total_ms", "exposed_ms"]].tolist() == [2, 2, 70_000_000, 45, 30]
    # Bytes per ns are GB/s; the factor of 2 ranks is 2 (2 - 1) / 2 = 1.
    assert kind["algbw_gb_s"] == kind["busbw_gb_s"] == pytest.approx(70e6 / 45e6)
    share = all_reduce([one_rank()])
    assert (share["all_reduce_share"], share["all_reduce_exposed_share"], share["all_reduce_ms"]) == (0.45, 0.3, 45)


def test_exposed_time_is_split_into_wait_and_transfer_by_the_other_ranks() -> None:
    ranks = [one_rank(0), one_rank(1, late=10)]  # 40..50 and 75..90: transfer 10 and 15
    matching = match_collectives(ranks)
    table = communication_by_rank(ranks, matching)
    # Rank 0 waits 30..40 (hidden) and 65..75 (65..70 hidden), transfers 40..50 and 75..90, all exposed.
    assert table["exposed_transfer_ms"].tolist() == [25, 25] and table["exposed_wait_ms"].tolist() == [5, 0]
    late = stragglers(ranks, matching).set_index("rank")
    assert late.loc[1].tolist() == [2, 0, 25, 0, 2, 20] and late.loc[0].tolist() == [2, 0, 25, 20, 0, 0]
    assert buckets(ranks[0], matching, 0)["wait_ms"].tolist() == [10, 10]
    assert buckets(ranks[1], matching, 1)["wait_ms"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("begin", "end", "count", "size", "total"),
    [
        (0, 60, 1, 20_000_000, 20),
        (0, 70, 2, 70_000_000, 25),
        (55, 100, 1, 50_000_000, 25),
        (25, 100, 1, 50_000_000, 45),
    ],
)
def test_time_is_cut_at_the_window_and_counts_are_of_what_was_launched_in_it(
    begin: int, end: int, count: int, size: int, total: int
) -> None:
    """Launched at 20 and 61 ms, run 30..50 and 65..90."""
    trace = with_step(begin, end)
    row, whole = communication_by_kind([trace]).iloc[0], communication_by_rank([trace]).iloc[0]
    assert (row["count"], row["bytes"], row["total_ms"]) == (count, size, total)
    assert whole["communication_ms"] == total and len(buckets(trace)) == count


def test_a_trace_without_marks_has_all_collectives_also_outside_its_gpu_work() -> None:
    """A GEMM at 5..8 ms and an all-reduce at 9..11 launched at 2: before all GPU work. MPI calls 0..3 and 10..14."""
    gemm = ("gemm", 0, 5 * MS, 8 * MS, 1)
    nccl = timeline(
        kernels=[gemm, (NCCL, 7, 9 * MS, 11 * MS, 2)],
        api=[(LAUNCH, 4 * MS, 4 * MS + 5, 1), (LAUNCH, 2 * MS, 2 * MS + 5, 2)],
        collectives=[("all_reduce", 9 * MS, 11 * MS, 8, 2, 7, "0", 2)],
    )
    assert communication_by_kind([nccl])["count"].tolist() == [1] and len(buckets(nccl)) == 1
    calls = timeline(collectives=[("send_recv", 0, 3 * MS), ("send_recv", 10 * MS, 14 * MS)]).collectives
    mpi = dataclasses.replace(timeline(kernels=[gemm]), collectives=calls)
    row = communication_by_rank([mpi]).iloc[0]
    assert (row["window_ms"], row["communication_ms"], row["exposed_ms"]) == (14, 7, 7)
    assert communication_by_kind([mpi])[["count", "total_ms"]].to_numpy().tolist() == [[2, 7]]
    assert buckets(mpi)["start_ms"].tolist() == [0, 10] and len(collective_table(mpi)) == 2


@pytest.mark.parametrize(
    ("calls", "count", "size", "algbw", "busbw"),
    [
        ([("all_reduce", 0, 10)], 1, None, None, None),
        ([("all_reduce", 0, 10, 100)], 1, 100, 10, None),
        ([("all_reduce", 0, 1000, 8000, -1, 7, "g", 2), ("all_reduce", 2000, 3000, -1, -1, 7, "g", 2)], 2, 8000, 8, 8),
        ([("all_reduce", 5, 5, 1 << 40, 1), ("all_reduce", 6, 9, 8)], 2, (1 << 40) + 8, 8 / 3, None),
        # Of eight ranks busbw is 7/8 of algbw in an all_gather.
        ([("all_gather", 0, MS, 8_000_000, -1, 7, "g", 8, 1)], 1, 8_000_000, 8, 7),
    ],
)
def test_bandwidths_are_of_calls_with_a_size_and_unknown_without_group(
    calls: list[tuple[object, ...]], count: int, size: int | None, algbw: float | None, busbw: float | None
) -> None:
    kernels = [(NCCL, 7, call[1], call[2]) for call in calls]
    (row,) = communication_by_kind([timeline(kernels=kernels, collectives=calls)]).to_dict("records")
    expected = {"count": count, "bytes": size, "algbw_gb_s": algbw, "busbw_gb_s": busbw}
    known = {name: None if pd.isna(row[name]) else row[name] for name in expected}
    assert known == {**expected, "busbw_gb_s": None if busbw is None else pytest.approx(busbw)}
