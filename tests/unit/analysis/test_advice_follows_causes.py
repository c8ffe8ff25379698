"""Advice follows what costs time: pauses of the host, launches, memory of copies, waiting ranks. All worked by hand."""

import gzip
import sqlite3
from pathlib import Path

import pytest
from support import shared_files
from support.timelines import timeline

from analysis.diagnose import communication as communication_findings
from analysis.diagnose import timelines as timeline_findings
from analysis.diagnose.advice import Context
from analysis.metrics.time.idle import idle_causes
from analysis.sources import open_sources
from analysis.timeline import Timeline

US, MS = 1_000, 1_000_000
LAUNCH = "cudaLaunchKernel"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"
FEWER = Context().fewer_launches


def of_time(*timelines: Timeline) -> dict[str, str]:
    return {found.name: found.sentence for found in timeline_findings.findings(timelines)}


def of_communication(*timelines: Timeline) -> dict[str, str]:
    return {found.name: found.sentence for found in communication_findings.findings(timelines)}


def with_pauses(name: str, marked: bool) -> Timeline:
    """Ten periods of 15,000 us: 100 launches in 1,000 us, 100 kernels of 100 us from 10 to 10,010, then a range on the
    CPU from 10,005 to 15,000, after which the next launch takes 5 us.

    Nine gaps of 5,000 us, of which 4,995 are over when the next call ends: 44.955 ms, and the range covers 4,990 of
    each, 44.91 ms. Of 145 ms from the first kernel to the last without marks, 31 %. Launches are 10 us apart, so 50 us
    is what a short gap has at most.
    """
    kernels, api, ranges, steps = [], [], [], []
    for period in range(10):
        begin = 15_000 * US * period
        steps.append((period, begin, begin + 15_000 * US))
        ranges.append((name.format(period), begin + 10_005 * US, begin + 15_000 * US))
        for place in range(100):
            number, start = 100 * period + place + 1, begin + (10 + 100 * place) * US
            api.append((LAUNCH, begin + 10 * place * US, begin + (10 * place + 5) * US, number))
            kernels.append(("gemm", 7, start, start + 100 * US, number))
    return timeline(steps=steps if marked else (), kernels=kernels, api=api, ranges=ranges)


@pytest.mark.parametrize(
    ("name", "marked", "shown"),
    [("IO {}", False, "IO n"), ("checkpoint save", False, "checkpoint save"), ("checkpoint save", True, "checkpoint")],
)
def test_pauses_of_the_host_are_named_and_no_reason_to_launch_less(name: str, marked: bool, shown: str) -> None:
    said = of_time(with_pauses(name, marked))
    assert "9 gaps longer than 50 µs" in said["idle_causes"] and f" in {shown}" in said["idle_causes"]
    assert "44.91 of 44.9" in said["idle_causes"]
    if not marked:
        assert "for 31.0 % the CPU pauses" in said["idle_causes"]
    assert "IO" not in said["launch_queue"] or "IO n" in said["launch_queue"]
    for sentence in (said["idle_causes"], said["launch_queue"]):
        assert FEWER not in sentence


def test_a_few_gaps_are_a_quarter_of_all_gaps() -> None:
    """20 gaps of 10 us between 21 kernels, 4 of them waits for data of 1,000 us more: fewer than a quarter of 20."""
    kernels, api, ranges, now = [], [], [], 100
    for place in range(21):
        if place in (3, 8, 12, 17):
            ranges.append(("bertbench:data", now * US, (now + 1000) * US))
            now += 1000
        api.append((LAUNCH, (now + 1) * US, (now + 6) * US, place + 1))
        kernels.append(("gemm", 7, (now + 10) * US, (now + 60) * US, place + 1))
        now += 60
    found = idle_causes(timeline(kernels=kernels, api=api, ranges=ranges))
    assert found is not None and found.spread is not None
    assert found.spread.steady_ns["data_wait"] == 4 * 1000 * US and found.spread.repeating_ns["data_wait"] == 0
    assert found.spread.steady_ns["launch_bound"] == found.spread.short_ns == 20 * 6 * US


@pytest.mark.parametrize(("loads", "share", "advised"), [(2500, "3.5 %", False), (500, "5.4 %", True)])
def test_what_is_less_than_five_per_cent_is_not_advised_for(loads: int, share: str, advised: bool) -> None:
    """100 kernels of 92 us, one each 100 us: of a gap of 8 us the CPU loads data, then launches until 6."""
    starts = [100 * US * place for place in range(100)]
    run = timeline(
        steps=[(0, 0, 10_000 * US)],
        ranges=[("bertbench:data", start, start + loads) for start in starts],
        api=[(LAUNCH, start + loads, start + 6 * US, number + 1) for number, start in enumerate(starts)],
        kernels=[("gemm", 7, start + 8 * US, start + 100 * US, number + 1) for number, start in enumerate(starts)],
    )
    sentence = of_time(run)["idle_causes"]
    assert "8.0 %" in sentence and share in sentence and (FEWER in sentence) == advised


@pytest.mark.parametrize(
    ("communicates", "copies", "idle", "left"),
    [(0, 0, 18, False), (16, 0, 17, False), (0, 0, 7, False), (4, 4, 4, False), (2, 0, 2, True), (4, 1, 4, True)],
)
def test_faster_kernels_are_what_is_left_where_nearly_all_is_computation(
    communicates: int, copies: int, idle: int, left: bool
) -> None:
    """Per cent of a step of 100 us; the rest of it computes."""
    ends = [communicates, communicates + copies, 100 - idle]
    works = [
        (NCCL, 9, 0, ends[0] * US),
        ("Memcpy HtoD (Pinned -> Device)", 8, ends[0] * US, ends[1] * US, -1, "memcpy"),
    ]
    works = [work for work in works if work[3] > work[2]]
    run = timeline(steps=[(0, 0, 100 * US)], kernels=[*works, ("gemm", 7, ends[1] * US, ends[2] * US)])
    assert ("faster kernels" in of_time(run)["temporal_breakdown"]) == left


@pytest.mark.parametrize(
    ("memory", "hidden", "advised"),
    [("Pinned", True, False), ("Pinned", False, True), ("Pageable", True, True)],
)
def test_copies_of_inputs_are_judged_by_the_memory_they_come_from(memory: str, hidden: bool, advised: bool) -> None:
    """A copy of 30 us in a data range beside 60 us of computation, or before it: over a tenth of 90 us."""
    begin = 10 if hidden else 40
    sentence = of_time(
        timeline(
            steps=[(0, 0, 100 * US)],
            ranges=[("bertbench:data", 0, 5 * US), ("bertbench:forward", 5 * US, 100 * US)],
            api=[("cudaMemcpyAsync", 1 * US, 2 * US, 1), (LAUNCH, 6 * US, 7 * US, 2)],
            kernels=[
                (f"Memcpy HtoD ({memory} -> Device)", 8, 10 * US, 40 * US, 1, "memcpy"),
                ("gemm", 7, begin * US, (begin + 60) * US, 2),
            ],
        )
    )["phases"]
    assert ("copy inputs" in sentence) == advised
    assert ("copy inputs from pinned memory" in sentence) == (memory == "Pageable")
    assert ("100 %" in sentence) == (memory == "Pinned" and hidden)


def test_the_cpu_runs_ahead_only_where_enough_launches_are_known() -> None:
    """Ten kernels back to back, launched 100 us before: all calls known, or two."""
    api = [(LAUNCH, place * US, place * US + 500, place + 1) for place in range(10)]
    kernels = [("gemm", 7, (100 + 10 * place) * US, (110 + 10 * place) * US, place + 1) for place in range(10)]
    assert "as it should" in of_time(timeline(kernels=kernels, api=api))["launch_queue"]
    few = of_time(timeline(kernels=kernels, api=api[:2]))["launch_queue"]
    assert "as it should" not in few and "2 of 10" in few


def test_a_queue_that_is_empty_for_most_of_the_time_is_not_praised() -> None:
    """A kernel at 20 us, called at 5; 100 kernels of 10 us from 10,020, launched from 10,000 on, 1 us apart.

    Data are loaded meanwhile. Nothing waits from 20 to 10,000 us of the time from the first call to the last start, 5
    to 11,010: 90.7 %.
    """
    api = [(LAUNCH, 5 * US, 6 * US, 1)]
    kernels = [("gemm", 7, 20 * US, 30 * US, 1)]
    for place in range(100):
        api.append((LAUNCH, (10_000 + place) * US, (10_000 + place) * US + 500, place + 2))
        kernels.append(("gemm", 7, (10_020 + 10 * place) * US, (10_030 + 10 * place) * US, place + 2))
    loading = [("bertbench:data", 30 * US, 10_000 * US)]
    trace = timeline(steps=[(0, 0, 11_100 * US)], kernels=kernels, api=api, ranges=loading)
    sentence = of_time(trace)["launch_queue"]
    assert "as it should" not in sentence and "90.7 %" in sentence


def late(rank: int) -> Timeline:
    """Rank 0 computes 70 ms and waits in an all-reduce from 70 to 95 for rank 1, which comes at 90: 20 + 5 ms."""
    begin, arrives = (0, 70) if rank == 0 else (20, 90)
    return timeline(
        rank,
        steps=[(1, 0, 100 * MS)],
        kernels=[("gemm", 7, begin * MS, arrives * MS), (NCCL, 20, arrives * MS, 95 * MS)],
        collectives=[("all_reduce", arrives * MS, 95 * MS, 10**8, -1, 20, "0", 2, 1)],
        world_size=2,
    )


def test_gains_of_transfer_and_waiting_are_their_exposed_shares() -> None:
    """Rank 0 waits 20 ms of 100 for rank 1 and both transfer for 5; one rank alone does not tell its 25 ms apart."""
    both = communication_findings.findings([late(0), late(1)])[0].advice
    assert {one.cause: one.saves for one in both} == pytest.approx({"waiting": 0.2, "communication": 0.05})
    alone = communication_findings.findings([late(0)])[0].advice
    assert {one.cause: one.saves for one in alone} == pytest.approx({"communication": 0.25})


def test_smaller_buckets_are_not_advised_against_waiting_for_a_late_rank() -> None:
    sentence = of_communication(late(0), late(1))["buckets"]
    assert "25 ms" in sentence and "20 ms" in sentence and "bucket_cap_mb" not in sentence
    assert "bucket_cap_mb" in of_communication(late(0))["buckets"], "what is waiting is not known of one rank"


def test_nothing_is_still_computed_in_a_trace_without_computation() -> None:
    run = timeline(kernels=[(NCCL, 20, 0, 5 * MS)], collectives=[("all_reduce", 0, 5 * MS, 10**8, -1, 20, "0", 2, 1)])
    sentence = of_communication(run)["buckets"]
    assert "5 ms" in sentence and "bucket_cap_mb" not in sentence


def test_the_largest_range_has_its_name_and_time() -> None:
    """Five ranges of 10, 11, 12, 13 and 14 ms."""
    ranges = [(f"IO {number}", 20 * number * MS, (20 * number + 10 + number) * MS) for number in range(5)]
    (found,) = timeline_findings.range_findings([timeline(ranges=ranges)])
    assert "the largest is IO 4 (14 ms)" in found.sentence


@pytest.mark.public
def test_real_pauses_are_named_with_the_time_that_the_ranges_have(tmp_path: Path) -> None:
    """A run that reads and prints in ranges IO 10, IO 20, ...: idle time within them, out of the database by hand."""
    (path,) = shared_files.TRACES.glob("nsys/tests__power_iteration__baseline*")
    plain = tmp_path / "plain.sqlite"
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    database = sqlite3.connect(plain)
    spans = [
        span
        for table in ("KERNEL", "MEMCPY", "MEMSET")
        if database.execute("select 1 from sqlite_master where name = ?", (f"CUPTI_ACTIVITY_KIND_{table}",)).fetchone()
        for span in database.execute(f"select start, end from CUPTI_ACTIVITY_KIND_{table}")
    ]
    marks = database.execute(
        "select n.start, n.end from NVTX_EVENTS n left join StringIds s on s.id = n.textId "
        "where coalesce(n.text, s.value) like 'IO %' and n.end is not null"
    ).fetchall()
    gaps, until = [], min(spans)[0]
    for start, end in sorted(spans):
        if start - until > 100 * US:
            gaps.append((until, start))
        until = max(until, end)
    inside = sum(max(0, min(stop, end) - max(start, begin)) for start, stop in gaps for begin, end in marks)
    said = of_time(*open_sources(path).timelines)
    assert inside > 600 * MS and f"{inside / MS:.4g} of" in said["idle_causes"] and "IO n" in said["idle_causes"]
    assert FEWER not in said["idle_causes"] + said["launch_queue"]


@pytest.mark.public
def test_hosts_that_stand_still_get_one_advice_in_all_tables() -> None:
    """426 to 466 ms of each launching thread's 634 ms are 17 to 36 calls of 5 to 44 ms (communication.md)."""
    ranks = open_sources(shared_files.TRACES / "kineto" / "megatron-8-ranks").timelines
    time, communication = of_time(*ranks), of_communication(*ranks)
    for sentence in (time["idle_causes"], time["launch_queue"]):
        assert "gaps longer than" in sentence and FEWER not in sentence
    assert "late rank varies" in communication["stragglers"]
