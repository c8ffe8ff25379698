"""Idle gaps and their causes: one trace per cause with known nanoseconds; the causes of a gap add up to it."""

import dataclasses
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.timelines import timeline

from analysis.metrics.time.idle import CAUSES, idle_causes, idle_gaps
from analysis.metrics.time.temporal import temporal_breakdown
from analysis.timeline import Timeline

LAUNCH, US, MS = "cudaLaunchKernel", 1_000, 1_000_000
KERNELS = [("gemm", 7, 0, 100, 1), ("gelu", 7, 200, 300, 2)]


def causes(trace: Timeline) -> dict[str, int]:
    """Return the idle time by cause, after a check of its sums."""
    gaps, whole = idle_gaps(trace), temporal_breakdown(trace)
    assert gaps is not None and whole is not None
    lengths = gaps["end_ns"] - gaps["start_ns"]
    sums = {cause: int(gaps[f"{cause}_ns"].sum()) for cause in CAUSES}
    assert (gaps[[f"{cause}_ns" for cause in CAUSES]].sum(axis=1) == lengths).all()
    if whole.on_gpu:
        assert lengths.sum() == whole.idle_ns * whole.devices
    table = idle_causes(trace, gaps)
    assert table["idle_ms"].sum() * 1e6 == pytest.approx(lengths.sum() / max(1, whole.devices))
    return {cause: length for cause, length in sums.items() if length}


def two_kernels(call_start: int, call_end: int, *calls: Any, **more: Any) -> Timeline:
    """Work 0..100 and 200..300, the second launched by a call at the given time: the gap is 100..200."""
    api = [(LAUNCH, -20, -10, 1), *calls, (LAUNCH, call_start, call_end, 2)]
    return timeline(steps=[(0, 0, 300)], kernels=KERNELS, api=api, **more)


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        (two_kernels(150, 220), {"launch_bound": 100}),  # the call ends after the work began
        (two_kernels(10, 20), {"unknown": 100}),  # the launch had begun before the gap
        (
            two_kernels(150, 170, ranges=[("bertbench:data", 90, 140)]),
            {"data_wait": 40, "launch_bound": 30, "unknown": 30},
        ),
        (
            two_kernels(150, 170, operators=[("c10d::barrier", 110, 140)]),
            {"communication": 30, "launch_bound": 40, "unknown": 30},
        ),
        (
            two_kernels(150, 170, ranges=[("gloo:all_reduce", 120, 145, "gloo thread")]),
            {"communication": 25, "launch_bound": 45, "unknown": 30},
        ),
        (
            # A range that only starts a collective is no wait, but a synchronization in it is.
            two_kernels(150, 170, ("cudaStreamSynchronize", 100, 120), ranges=[("nccl:all_reduce", 100, 160)]),
            {"communication": 20, "launch_bound": 50, "unknown": 30},
        ),
        (
            two_kernels(150, 170, ("cudaStreamSynchronize", 90, 120), ("cudaMalloc", 125, 140)),
            {"synchronization": 20, "allocator": 15, "launch_bound": 35, "unknown": 30},
        ),
        (  # a thread that launches nothing may wait as long as it likes
            two_kernels(150, 170, ("cudaStreamSynchronize", 90, 120, -1, "other")),
            {"launch_bound": 70, "unknown": 30},
        ),
        (  # of several kernels that end a gap the first launched one counts
            timeline(
                steps=[(0, 0, 300)],
                kernels=[("gemm", 7, 0, 100, 1), ("late", 7, 200, 250, 2), ("early", 8, 200, 300, 3)],
                api=[(LAUNCH, -9, -5, 1), (LAUNCH, 180, 190, 2), (LAUNCH, 50, 60, 3)],
            ),
            {"unknown": 100},
        ),
        (  # 50..80 before the first call is over, 80..100 its latency; 200..400 cut before the second call is over
            timeline(
                steps=[(0, 50, 400)],
                kernels=[("gemm", 7, 100, 200, 1), ("gelu", 7, 500, 600, 2)],
                api=[(LAUNCH, 70, 80, 1), (LAUNCH, 390, 420, 2)],
            ),
            {"launch_bound": 230, "unknown": 20},
        ),
        (  # without calls only waits are known
            timeline(steps=[(0, 0, 300)], kernels=[row[:4] for row in KERNELS], ranges=[("bertbench:data", 90, 140)]),
            {"data_wait": 40, "unknown": 60},
        ),
        (  # on a CPU idle is where no operator computes
            timeline(
                steps=[(0, 0, 300)],
                operators=[("aten::mm", 0, 100), ("aten::mul", 250, 280)],
                ranges=[("bertbench:data", 90, 150)],
                collectives=[("all_reduce", 140, 200)],
            ),
            {"data_wait": 50, "communication": 50, "unknown": 70},
        ),
    ],
)
def test_the_cause_of_a_gap(trace: Timeline, expected: dict[str, int]) -> None:
    assert causes(trace) == expected


def test_two_gpus_have_gaps_of_their_own() -> None:
    """GPU 0 works 0..40 of 100 ns, GPU 1 20..60: idle 60 each, on average 60."""
    trace = timeline(steps=[(0, 0, 100)], kernels=[("gemm", 7, 0, 40), ("gelu", 8, 20, 60)])
    trace = dataclasses.replace(trace, kernels=trace.kernels.assign(device=[0, 1]))
    gaps = idle_gaps(trace)
    assert gaps is not None and causes(trace) == {"unknown": 120}
    assert gaps[["device", "start_ns", "end_ns"]].to_numpy().tolist() == [[1, 0, 20], [0, 40, 100], [1, 60, 100]]
    assert idle_causes(trace, gaps)["window_share"].sum() == pytest.approx(0.6)


# Two pieces of work that start together, launched by calls that begin together.
TOGETHER = [((36, 39), 11, 2), ((36, 39), 11, 1)]
SPAN = st.tuples(st.integers(0, 120), st.integers(0, 20)).map(lambda item: (item[0], sum(item)))


@settings(deadline=None)
@example(TOGETHER, [(45, 58), (45, 58)], [])
@given(
    st.lists(st.tuples(SPAN, st.integers(0, 60), st.integers(1, 9)), min_size=1, max_size=8),
    st.lists(SPAN, max_size=4),
    st.lists(SPAN, max_size=4),
)
def test_the_causes_agree_with_judging_every_nanosecond(
    works: list[tuple[tuple[int, int], int, int]], data: list[tuple[int, int]], waits: list[tuple[int, int]]
) -> None:
    kernels = [("gemm", 7, start, end, index + 1) for index, ((start, end), _, _) in enumerate(works)]
    calls = [(LAUNCH, s - early, s - early + long, i + 1) for i, ((s, _), early, long) in enumerate(works)]
    ranges = [*(("bertbench:data", *span) for span in data), *(("bertbench:communication", *span) for span in waits)]
    gaps = idle_gaps(timeline(steps=[(0, 10, 110)], kernels=kernels, api=calls, ranges=ranges))
    busy = {t for _, _, start, end, _ in kernels for t in range(start, end)}
    expected = dict.fromkeys(CAUSES, 0)
    lasting = [(start, calls[number - 1][1:3]) for _, _, start, end, number in kernels if end > start]
    for t in set(range(10, 110)) - busy:
        begin = max((end for _, _, start, end, _ in kernels if start < end <= t), default=-(10**6))
        after = [(start, call) for start, call in lasting if start > t]
        cause = "unknown"
        first, last = min(after)[1] if after else (10**6, 10**6)
        if not after or (first > begin and t < last):
            if any(a <= t < b for a, b in data):
                cause = "data_wait"
            elif any(a <= t < b for a, b in waits):
                cause = "communication"
            elif after:
                cause = "launch_bound"
        expected[cause] += 1
    assert gaps is not None
    assert {cause: int(gaps[f"{cause}_ns"].sum()) for cause in CAUSES} == expected
