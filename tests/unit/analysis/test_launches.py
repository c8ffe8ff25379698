"""The launch queue: delays, depth and calls, counted by hand and by brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.timelines import timeline

from analysis.metrics.time.launches import launch_queue, launching_calls, queue_depth

LAUNCH = "cudaLaunchKernel"


def test_kernels_are_tied_to_calls_by_correlation_and_a_graph_s_share_one() -> None:
    trace = timeline(
        kernels=[("a", 7, 10, 20, 5), ("b", 7, 30, 40, 5), ("c", 7, 50, 60, 99), ("d", 7, 70, 80), ("e", 7, 90, 95, 2)],
        api=[(LAUNCH, 1, 2, 2), ("cudaGraphLaunch", 3, 4, 5), ("cuLaunchKernel", 6, 7, 5)],
    )
    calls = launching_calls(trace)
    assert calls is not None and calls.tolist() == [1, 1, -1, -1, 0]


def test_without_calls_or_ids_nothing_is_tied() -> None:
    kernels = [("a", 7, 10, 20, 5)]
    assert launching_calls(timeline(kernels=kernels)) is launch_queue(timeline(kernels=kernels)) is None
    unrelated = timeline(kernels=kernels, api=[(LAUNCH, 1, 2, 6), ("cudaDeviceSynchronize", 3, 4)])
    assert launching_calls(unrelated) is launch_queue(unrelated) is None


def test_delays_and_depth_by_hand() -> None:
    us = 1000
    trace = timeline(
        steps=[(0, 0, 200 * us), (1, 200 * us, 400 * us)],
        # delays 5, 100, 60 and 20 us; 3, 98, 58 and 8 us after the ends of the calls
        kernels=[(f"k{i}", 7, s * us, (s + 10) * us, i) for i, s in ((1, 5), (2, 110), (3, 120), (4, 230))],
        api=[(LAUNCH, s * us, e * us, i) for i, s, e in ((1, 0, 2), (2, 10, 12), (3, 60, 62), (4, 210, 222))],
    )
    found = launch_queue(trace)
    assert found is not None
    assert (found.kernels, found.matched, found.negative_delays, found.launches_per_step) == (4, 4, 0, 2.0)
    assert found.delay_median_us == pytest.approx(40.0) and found.short_delay_share == 0.5
    # waiting: 0..5 one, 5..10 none, 10..60 one, 60..110 two, 110..120 one, 120..210 none, 210..230 one
    assert found.depth_max == 2 and found.depth_mean == pytest.approx((5 + 50 + 100 + 10 + 20) / 230)
    assert found.empty_share == pytest.approx(95 / 230)
    times, depth = queue_depth(np.array([0, 10, 60, 210]), np.array([5, 110, 120, 230]))
    assert times.tolist() == [0, 5, 10, 60, 110, 120, 210, 230]
    assert depth.tolist() == [1, 0, 1, 2, 1, 0, 1, 0]


def test_work_that_starts_before_its_call_is_counted_and_never_waits() -> None:
    found = launch_queue(timeline(kernels=[("a", 7, 10, 20, 1)], api=[(LAUNCH, 15, 18, 1)]))
    assert found is not None
    assert (found.negative_delays, found.delay_median_us, found.depth_max, found.launches_per_step) == (1, 0.0, 0, None)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(-5, 40)), min_size=1, max_size=12))
def test_the_depth_agrees_with_counting_at_every_nanosecond(launches: list[tuple[int, int]]) -> None:
    called, delays = np.array(launches).T
    changes = dict(zip(*(values.tolist() for values in queue_depth(called, called + delays)), strict=True))
    depth = 0
    for moment in range(-10, 90):
        depth = changes.get(moment, depth)
        assert depth == sum(call <= moment < call + delay for call, delay in launches), moment


def test_work_that_starts_late_on_an_idle_gpu_found_it_waiting() -> None:
    # Each kernel starts 17 us after its call begins and 12 us after it ends. The first and the third are launched when
    # nothing runs; the second, at 10 us, while the first runs from 17 to 60, is not.
    calls = [(LAUNCH, 0, 5_000, 1), (LAUNCH, 10_000, 15_000, 2), (LAUNCH, 90_000, 95_000, 3)]
    kernels = [("a", 7, 17_000, 60_000, 1), ("b", 7, 61_000, 70_000, 2), ("c", 7, 107_000, 120_000, 3)]
    found = launch_queue(timeline(kernels=kernels, api=calls))
    assert found is not None
    assert found.short_delay_share == 0 and found.found_idle_share == pytest.approx(2 / 3)
