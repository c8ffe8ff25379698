"""Times worked by hand in ns; bandwidths against nccl-tests' own log; real traces against their expected values."""

import csv
import dataclasses

import pandas as pd
import pytest
from support.shared_files import TRACES
from support.timelines import timeline

from analysis.diagnose import timelines as timeline_findings
from analysis.diagnose.communication import findings, no_communication
from analysis.metrics.communication.exposure import buckets, communication_by_kind, communication_by_rank
from analysis.metrics.communication.matching import match_collectives, stragglers
from analysis.names import bus_factor
from analysis.timeline import Timeline

MS = 1_000_000
NAMES = ["all_reduce_by_rank", "collectives", "stragglers", "buckets", "clock_offsets"]
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"


def one_rank(rank: int = 0, late: int = 0, **more: object) -> Timeline:
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
        api=[("cudaLaunchKernel", 20 * MS, 21 * MS, 3), ("cudaLaunchKernel", 61 * MS, 62 * MS, 4)],
        collectives=[
            ("all_reduce", first, 50 * MS, 20_000_000, 3, 7, "0", 2, -1),
            ("all_reduce", second, 90 * MS, 50_000_000, 4, 7, "0", 2, -1),
        ],
        world_size=2,
        **more,
    )


def test_overlapped_and_exposed_are_of_unions_and_copies_hide_nothing() -> None:
    row = communication_by_rank([one_rank()]).iloc[0]
    # C = 20 + 25 = 45, K = 40 + 10, both: 30..40 and 65..70 = 15
    assert (row["communication_ms"], row["overlapped_ms"], row["exposed_ms"]) == (45, 15, 30)
    assert row["compute_ms"] == 50
    assert (row["communication_share"], row["exposed_share"]) == (0.45, 0.3)
    assert row["overlap_share"] == pytest.approx(1 / 3)
    assert pd.isna(row["exposed_wait_ms"])  # one rank does not say


def test_exposed_time_is_split_into_wait_and_transfer_by_the_other_ranks() -> None:
    ranks = [one_rank(0), one_rank(1, late=10)]  # 40..50 and 75..90: transfer 10 and 15
    table = communication_by_rank(ranks, match_collectives(ranks))
    # rank 0: waits 30..40 (hidden) and 65..75 (65..70 hidden), transfers 40..50 and 75..90, all exposed
    assert table["exposed_transfer_ms"].tolist() == [25, 25]
    assert table["exposed_wait_ms"].tolist() == [5, 0]
    late = stragglers(ranks, match_collectives(ranks))
    assert late["rank"].tolist() == [1, 0]
    assert late["wait_ms"].tolist() == [0, 20]
    assert late["transfer_ms"].tolist() == [25, 25]
    assert late["times_last"].tolist() == [2, 0]
    assert late["wait_caused_ms"].tolist() == [20, 0]
    assert late["arrival_skew_ms"].tolist() == [10, 0]


def test_bandwidths_are_those_of_nccl_tests() -> None:
    row = communication_by_kind([one_rank()]).iloc[0]
    assert (row["count"], row["bytes"], row["total_ms"]) == (2, 70_000_000, 45)
    assert row["algbw_gb_s"] == pytest.approx(70e6 / 45e6)  # bytes / ns = GB/s
    assert row["busbw_gb_s"] == pytest.approx(70e6 / 45e6)  # 2 (2 - 1) / 2 = 1
    assert (row["sized"], row["overlapped_ms"], row["exposed_ms"]) == (2, 15, 30)
    assert (row["communication_share"], row["exposed_share"]) == (0.45, 0.3)
    assert row["overlap_share"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(("begin", "end", "size"), [(0, 60, 20_000_000), (55, 100, 50_000_000)])
def test_a_collective_counts_where_its_middle_lies_in_the_window(begin: int, end: int, size: int) -> None:
    steps = timeline(steps=[(3, begin * MS, end * MS)]).steps
    row = communication_by_kind([dataclasses.replace(one_rank(), steps=steps)]).iloc[0]
    assert (row["count"], row["bytes"]) == (1, size)


def test_bandwidth_is_unknown_without_size_or_group() -> None:
    spans = [("all_reduce", 0, 10)]
    row = communication_by_kind([timeline(kernels=[(NCCL, 7, 0, 10)], collectives=spans)]).iloc[0]
    assert pd.isna(row["busbw_gb_s"]) and pd.isna(row["algbw_gb_s"])
    sized = [("all_reduce", 0, 10, 100)]
    row = communication_by_kind([timeline(kernels=[(NCCL, 7, 0, 10)], collectives=sized)]).iloc[0]
    assert row["algbw_gb_s"] == 10 and pd.isna(row["busbw_gb_s"])


def test_bus_factors() -> None:
    assert bus_factor("all_reduce", 8) == 1.75
    assert bus_factor("all_gather", 8) == bus_factor("reduce_scatter", 8) == bus_factor("all_to_all", 8) == 0.875
    assert bus_factor("broadcast", 8) == bus_factor("reduce", 8) == 1
    assert bus_factor("barrier", 8) is None and bus_factor("all_reduce", -1) is None


@pytest.mark.public
def test_bus_factor_is_that_of_a_real_log_of_nccl_tests() -> None:
    log = TRACES / "misc" / "nccl-tests__nccl_allreduce.log"
    checked = 0
    for line in log.read_text().splitlines():
        words = line.split()
        if len(words) == 12 and words[0].isdigit() and float(words[6]) > 20:
            assert float(words[6]) / float(words[5]) == pytest.approx(bus_factor("all_reduce", 8), rel=2e-3)
            checked += 1
    assert checked > 5


def test_buckets_say_when_they_were_launched_and_what_is_left_to_hide_them() -> None:
    table = buckets(one_rank())
    assert table["launched_ms"].tolist() == [20, 61]
    assert table["start_ms"].tolist() == [30, 65]
    assert table["end_ms"].tolist() == [50, 90]
    assert table["duration_ms"].tolist() == [20, 25]
    assert table["bytes"].tolist() == [20_000_000, 50_000_000]
    assert table["exposed_ms"].tolist() == [10, 20]
    assert table["compute_after_start_ms"].tolist() == [20, 5]  # 30..40 + 60..70; 65..70
    assert table["step"].tolist() == [3, 3]
    assert table["wait_ms"].isna().all(), "one rank does not say"
    earlier = timeline(steps=[(3, -10 * MS, 100 * MS)]).steps
    table = buckets(dataclasses.replace(one_rank(), steps=earlier))
    assert table[["launched_ms", "start_ms", "end_ms"]].to_numpy().tolist() == [[30, 40, 60], [71, 75, 100]]


def test_a_bucket_waits_for_the_rank_that_is_late() -> None:
    ranks = [one_rank(0), one_rank(1, late=10)]
    matching = match_collectives(ranks)
    assert buckets(ranks[0], matching, 0)["wait_ms"].tolist() == [10, 10]
    assert buckets(ranks[1], matching, 1)["wait_ms"].tolist() == [0, 0]


def test_on_a_cpu_operators_of_other_threads_hide_spans_of_gloo() -> None:
    rank = timeline(
        steps=[(0, 0, 100)],
        operators=[("aten::mm", 0, 60), ("aten::mm", 80, 90), ("gloo:all_reduce", 40, 80, "gloo")],
        collectives=[("all_reduce", 40, 80, 1000)],
    )
    row = communication_by_rank([rank]).iloc[0]
    assert row["compute_ms"] * MS == pytest.approx(70)
    assert row["exposed_ms"] * MS == pytest.approx(20)  # 60..80


def test_calls_of_mpi_beside_a_gpu_count() -> None:
    rank = timeline(steps=[(0, 0, 100)], kernels=[("gemm", 0, 0, 40, 1)], api=[("cudaLaunchKernel", 0, 1, 1)])
    calls = timeline(collectives=[("all_reduce", 30, 70)]).collectives
    rank = dataclasses.replace(rank, collectives=calls)
    row = communication_by_rank([rank]).iloc[0]
    assert (row["communication_ms"] * MS, row["exposed_ms"] * MS) == (pytest.approx(40), pytest.approx(30))
    # Beside 40 % of the window in calls of MPI, "0 % communication" would be of another kind of communication.
    where = timeline_findings.findings([rank])[0].sentence
    assert "0 % communication" not in where and "no communication on the GPU" in where


def test_findings_have_the_promised_names_and_one_sentence() -> None:
    found = findings([one_rank(0), one_rank(1, late=10)])
    assert [finding.name for finding in found] == NAMES
    for finding in found:
        assert finding.sentence.endswith(".") and ". " not in finding.sentence
    assert "rank 1" in found[2].sentence.lower() and "100 % of the waiting" in found[2].sentence


def test_without_communication_there_is_a_reason_and_no_finding() -> None:
    rank = timeline(kernels=[("gemm", 0, 0, 10)])
    assert findings([rank]) == []
    assert no_communication([rank]).startswith("no communication in this trace: no kernel is one of NCCL")


def test_hostile_names_and_lone_zero_length_collectives_give_a_result() -> None:
    rank = timeline(
        kernels=[("<script>nccl", 7, 5, 5, 1)], collectives=[("all_reduce", 5, 5, 1 << 62, 1)], api=[("x", 5, 5, 1)]
    )
    assert [finding.name for finding in findings([rank, rank])] == NAMES


@pytest.mark.public
@pytest.mark.parametrize("folder", ["dlrm-8-ranks", "megatron-8-ranks"])
def test_real_traces_agree_with_their_expected_values(folder: str) -> None:
    path = TRACES / "kineto" / folder
    from analysis.sources import open_sources

    table = communication_by_rank(open_sources(path).timelines, window="kernels").set_index("rank")
    with (path / "expected.csv").open() as file:
        expected = list(csv.DictReader(file))
    assert len(table) == len(expected) == 8
    for row in expected:
        own = table.loc[int(row["rank"])]
        assert own["communication_ms"] * 1000 == pytest.approx(float(row["communication_us"]))
        assert own["compute_ms"] * 1000 == pytest.approx(float(row["compute_us"]))
        assert own["window_ms"] * 1000 == pytest.approx(float(row["span_us"]))
        assert round(100 * own["overlap_share"], 1) == float(row["overlap_percent_of_communication"])


def test_a_collective_of_unknown_size_does_not_make_the_others_smaller() -> None:
    kernels = [("ncclDevKernel_AllReduce", 7, 0, 1000), ("ncclDevKernel_AllReduce", 7, 2000, 3000)]
    collectives = [("all_reduce", 0, 1000, 8_000_000, -1, 7, "g", 2), ("all_reduce", 2000, 3000, -1, -1, 7, "g", 2)]
    one = timeline(0, steps=[(0, 0, 4000)], kernels=kernels, collectives=collectives, world_size=2)
    (row,) = communication_by_kind([one]).to_dict("records")
    assert (row["count"], row["sized"], row["bytes"]) == (2, 1, 8_000_000)
    said = {finding.name: finding.sentence for finding in findings([one])}["collectives"]
    assert "moves 8 MB per call" in said, said
