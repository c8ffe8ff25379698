"""Idle time by cause: one trace per cause with known nanoseconds; all of them add up to the idle time."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import shared_files
from support.shared_files import samples
from support.timelines import timeline

from analysis.metrics.time.idle import CAUSES, IdleCauses, idle_causes, idle_frame
from analysis.metrics.time.temporal import temporal_breakdown
from analysis.metrics.time.window import windowed
from analysis.readers.kineto.reader import read
from analysis.timeline import Timeline

TRACES = shared_files.TRACES / "kineto"
LAUNCH = "cudaLaunchKernel"


def causes(trace: Timeline) -> dict[str, int]:
    found = idle_causes(trace)
    assert found is not None
    whole = temporal_breakdown(trace)
    assert whole is not None
    assert sum(found.ns(cause) for cause in CAUSES) == found.idle_ns
    if found.on_gpu:
        assert (found.span_ns, found.idle_ns) == (whole.span_ns, whole.idle_ns)
    return {cause: found.ns(cause) for cause in CAUSES if found.ns(cause)}


def two_kernels(call_start: int, call_end: int, **more: Any) -> Timeline:
    """Work 0..100 and 200..300, the second launched by a call at the given time: the gap is 100..200."""
    return timeline(
        steps=[(0, 0, 300)],
        kernels=[("gemm", 7, 0, 100, 1), ("gelu", 7, 200, 300, 2)],
        api=[(LAUNCH, -20, -10, 1), (LAUNCH, call_start, call_end, 2)],
        **more,
    )


def test_a_gap_is_launch_bound_until_the_late_call_ends() -> None:
    assert causes(two_kernels(150, 170)) == {"launch_bound": 70, "other": 30}


def test_a_call_that_ends_after_the_work_began_makes_the_whole_gap_launch_bound() -> None:
    assert causes(two_kernels(150, 220)) == {"launch_bound": 100}


@pytest.mark.parametrize(("start", "end"), [(10, 20), (90, 150), (100, 130)])
def test_work_whose_launch_had_begun_before_the_gap_is_not_launch_bound(start: int, end: int) -> None:
    assert causes(two_kernels(start, end)) == {"other": 100}


@pytest.mark.parametrize(
    "name",
    ["bertbench:data", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "## wait_for_batch ##"],
)
def test_the_part_of_a_late_launch_spent_on_data_is_data_wait(name: str) -> None:
    trace = two_kernels(150, 170, ranges=[(name, 90, 140)])
    assert causes(trace) == {"data_wait": 40, "launch_bound": 30, "other": 30}


def test_data_loading_is_no_cause_while_work_is_queued() -> None:
    assert causes(two_kernels(10, 20, ranges=[("bertbench:data", 90, 180)])) == {"other": 100}


def test_a_barrier_of_the_host_is_communication_wait() -> None:
    trace = two_kernels(150, 170, operators=[("c10d::barrier", 110, 140)])
    assert causes(trace) == {"communication_wait": 30, "launch_bound": 40, "other": 30}


def test_the_loop_s_own_communication_phase_is_communication_wait() -> None:
    trace = two_kernels(150, 170, ranges=[("bertbench:communication", 95, 150)])
    assert causes(trace) == {"communication_wait": 50, "launch_bound": 20, "other": 30}


def test_a_range_that_only_starts_a_collective_is_no_wait_but_a_synchronise_in_it_is() -> None:
    enqueue = [("nccl:all_reduce", 100, 160)]
    assert causes(two_kernels(150, 170, ranges=enqueue)) == {"launch_bound": 70, "other": 30}
    trace = timeline(
        steps=[(0, 0, 300)],
        kernels=[("gemm", 7, 0, 100, 1), ("gelu", 7, 200, 300, 2)],
        api=[(LAUNCH, -20, -10, 1), ("cudaStreamSynchronize", 100, 120), (LAUNCH, 150, 170, 2)],
        ranges=enqueue,
    )
    assert causes(trace) == {"communication_wait": 20, "launch_bound": 50, "other": 30}


def test_gloo_spans_of_a_gpu_job_are_communication_wait() -> None:
    trace = two_kernels(150, 170, ranges=[("gloo:all_reduce", 120, 145, "gloo thread")])
    assert causes(trace) == {"communication_wait": 25, "launch_bound": 45, "other": 30}


def test_of_several_kernels_that_end_a_gap_the_first_launched_one_counts() -> None:
    trace = timeline(
        steps=[(0, 0, 300)],
        kernels=[("gemm", 7, 0, 100, 1), ("late", 7, 200, 250, 2), ("early", 8, 200, 300, 3)],
        api=[(LAUNCH, -9, -5, 1), (LAUNCH, 180, 190, 2), (LAUNCH, 50, 60, 3)],
    )
    assert causes(trace) == {"other": 100}


def test_the_window_cuts_gaps_at_both_ends() -> None:
    trace = timeline(
        steps=[(0, 50, 400)],
        kernels=[("gemm", 7, 100, 200, 1), ("gelu", 7, 500, 600, 2)],
        api=[(LAUNCH, 70, 80, 1), (LAUNCH, 390, 420, 2)],
    )
    # 50..80 before the first call is over, 80..100 its latency; 200..400 is cut before the second call is over
    assert causes(trace) == {"launch_bound": 230, "other": 20}


def test_nothing_is_launched_after_the_last_work_so_its_end_is_other_or_a_wait() -> None:
    trace = timeline(
        steps=[(0, 0, 300)],
        kernels=[("gemm", 7, 0, 100, 1)],
        api=[(LAUNCH, -9, -5, 1)],
        ranges=[("bertbench:data", 250, 300)],
    )
    assert causes(trace) == {"data_wait": 50, "other": 150}


def test_the_longest_calls_of_a_gap_are_named_without_exponents() -> None:
    second = 10**9
    trace = timeline(
        kernels=[("gemm", 7, 0, 1000, 1), ("gelu", 7, 15 * second, 16 * second, 2)],
        api=[(LAUNCH, -20, -10, 1), ("cudaMalloc", 2000, 14 * second, -1), (LAUNCH, 14 * second, 15 * second, 2)],
    )
    found = idle_causes(trace)
    assert found is not None and found.spread is not None
    assert found.spread.largest[0].calls.startswith("cudaMalloc 14,000 ms")


def test_without_calls_only_waits_are_told_apart_and_the_reason_is_said() -> None:
    trace = timeline(
        steps=[(0, 0, 300)],
        kernels=[("gemm", 7, 0, 100), ("gelu", 7, 200, 300)],
        ranges=[("bertbench:data", 90, 140)],
    )
    assert causes(trace) == {"data_wait": 40, "other": 60}
    found = idle_causes(trace)
    assert found is not None and "which calls launched" in found.reason
    assert idle_frame([found]).set_index("cause").loc["launch_bound", "note"] == found.reason


def test_of_a_range_that_occurs_twice_only_the_gaps_that_it_meets_are_counted() -> None:
    """The gaps are 100..200, 210..220, 230..300 and 310..400; "copy" meets the first and the last of them."""
    work = [(0, 100), (200, 210), (220, 230), (300, 310), (400, 500)]
    trace = timeline(
        kernels=[("gemm", 7, *span, number) for number, span in enumerate(work, start=1)],
        api=[(LAUNCH, -9, -5, 1), (LAUNCH, 110, 120, 2)],
        ranges=[("copy", 150, 160), ("copy", 350, 360), ("all", 150, 360)],
    )
    said = {}
    for name in ("copy", "all"):
        (chosen,), _ = windowed([trace], f"range:{name}")
        found = idle_causes(chosen)
        assert found is not None
        said[name] = found.reason
    assert said["copy"].startswith("1 of 2 gaps")
    assert said["all"].startswith("3 of 4 gaps")


def test_on_a_cpu_idle_is_where_no_operator_computes() -> None:
    trace = timeline(
        steps=[(0, 0, 300)],
        operators=[("aten::mm", 0, 100), ("aten::mul", 250, 280)],
        ranges=[("bertbench:data", 90, 150)],
        collectives=[("all_reduce", 140, 200)],
    )
    assert causes(trace) == {"data_wait": 50, "communication_wait": 50, "other": 70}


def test_a_trace_in_which_nothing_ran_has_no_causes() -> None:
    assert idle_causes(timeline()) is None and len(idle_frame([])) == 0


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
    trace = timeline(
        steps=[(0, 10, 110)],
        kernels=kernels,
        api=calls,
        ranges=[*(("bertbench:data", *span) for span in data), *(("bertbench:communication", *span) for span in waits)],
    )
    busy = {t for _, _, start, end, _ in kernels for t in range(start, end)}
    expected = dict.fromkeys(CAUSES, 0)
    lasting = [(start, calls[number - 1][1:3]) for _, _, start, end, number in kernels if end > start]
    for t in set(range(10, 110)) - busy:
        begin = max((end for _, _, start, end, _ in kernels if start < end <= t), default=-(10**6))
        after = [(start, call) for start, call in lasting if start > t]
        cause = "other"
        first, last = min(after)[1] if after else (10**6, 10**6)
        if not after or (first > begin and t < last):
            if any(a <= t < b for a, b in data):
                cause = "data_wait"
            elif any(a <= t < b for a, b in waits):
                cause = "communication_wait"
            elif after:
                cause = "launch_bound"
        expected[cause] += 1
    found = idle_causes(trace)
    if found is not None:
        assert {cause: found.ns(cause) for cause in CAUSES} == expected


@pytest.mark.parametrize(
    "path",
    samples(
        *("kineto/*.json.gz", "kineto/nccl*/rank1*", "kineto/dlrm*/worker0*", "kineto/megatron*/*rank6*"),
        *("kineto/hta/cpu_only*", "kineto/hta/nccl_*"),
    ),
)
def test_the_causes_of_a_trace_add_up(path: Path) -> None:
    found = causes(read(path))
    assert found and all(value > 0 for value in found.values())


def test_the_frame_has_shares_of_idle_and_of_the_window() -> None:
    row = IdleCauses(0, 200, 100, 60, 0, 40, 0, True, "")
    frame = idle_frame([row]).set_index("cause")
    assert frame.loc["data_wait", ["idle_time_share", "window_share"]].tolist() == [0.6, 0.3]
