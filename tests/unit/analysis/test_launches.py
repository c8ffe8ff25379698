"""What launched what, the window that counts by it, and the launch queue: by hand and by brute force."""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.timelines import timeline

from analysis.metrics.time.idle import launch_queue
from analysis.metrics.time.window import launching_calls
from analysis.timeline import Timeline

LAUNCH, US, MS = "cudaLaunchKernel", 1_000, 1_000_000


def queue(trace: Timeline) -> "pd.Series[float]":
    (_, row), *_ = launch_queue([trace]).iterrows()
    return row


def test_kernels_are_tied_to_calls_by_correlation_and_a_graph_s_share_one() -> None:
    trace = timeline(
        kernels=[("a", 7, 10, 20, 5), ("b", 7, 30, 40, 5), ("c", 7, 50, 60, 99), ("d", 7, 70, 80), ("e", 7, 90, 95, 2)],
        api=[(LAUNCH, 1, 2, 2), ("cudaGraphLaunch", 3, 4, 5), ("cuLaunchKernel", 6, 7, 5)],
    )
    calls = launching_calls(trace)
    assert calls is not None and calls.tolist() == [1, 1, -1, -1, 0]
    for api in ([], [(LAUNCH, 1, 2, 6)]):
        bare = timeline(kernels=[("a", 7, 10, 20, 5)], api=api)
        assert launching_calls(bare) is None and not len(launch_queue([bare]))


def test_delays_and_depth_by_hand() -> None:
    trace = timeline(
        steps=[(0, 0, 200 * US), (1, 200 * US, 400 * US)],
        # Delays 5, 100, 60 and 20 us; 3, 98, 58 and 8 us after the ends of the calls.
        kernels=[(f"k{i}", 7, s * US, (s + 10) * US, i) for i, s in ((1, 5), (2, 110), (3, 120), (4, 230))],
        api=[(LAUNCH, s * US, e * US, i) for i, s, e in ((1, 0, 2), (2, 10, 12), (3, 60, 62), (4, 210, 222))],
    )
    row = queue(trace)
    assert row[["kernels", "matched", "launches_per_step", "depth_max"]].tolist() == [4, 4, 2, 2]
    # Waiting: 0..5 one, 5..10 none, 10..60 one, 60..110 two, 110..120 one, 120..210 none, 210..230 one.
    assert row["depth_mean"] == pytest.approx((5 + 50 + 100 + 10 + 20) / 230)
    assert row["empty_share"] == pytest.approx(95 / 230) and row["delay_median_us"] == pytest.approx(40)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(-5, 40)), min_size=1, max_size=12))
def test_the_depth_agrees_with_counting_at_every_nanosecond(launches: list[tuple[int, int]]) -> None:
    row = queue(
        timeline(
            kernels=[(f"k{i}", 7, call + delay, call + delay + 50, i) for i, (call, delay) in enumerate(launches, 1)],
            api=[(LAUNCH, call, call + 1, i) for i, (call, _) in enumerate(launches, 1)],
        )
    )
    waits = [(call, call + delay) for call, delay in launches if delay > 0]
    begin, end = min((call for call, _ in waits), default=0), max((start for _, start in waits), default=0)
    depth = [sum(call <= moment < start for call, start in waits) for moment in range(begin, end)]
    assert row["depth_max"] == max(depth, default=0)
    assert row["depth_mean"] == pytest.approx(sum(depth) / max(len(depth), 1))
    assert row["empty_share"] == pytest.approx(depth.count(0) / len(depth) if depth else 0.0)
