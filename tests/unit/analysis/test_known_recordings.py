"""Recordings known by construction, to the nanosecond; make truth-test takes them through the command line."""

from pathlib import Path

import pytest
from support.known_trace import WRITERS, make

from analysis.metrics.communication.exposure import communication_by_rank
from analysis.metrics.kernels.utilization import compute_utilization
from analysis.sources import open_sources


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("seed", [1, 2])
def test_busy_overlapped_and_exposed_time_are_those_the_recording_was_made_of(
    form: str, seed: int, tmp_path: Path
) -> None:
    trace = make(seed, steps=4, stretches=15)
    name, write = WRITERS[form]
    (timeline,) = open_sources(write(trace, tmp_path / name)).timelines
    true, window = trace.nanoseconds, trace.window
    used = compute_utilization(timeline)
    assert used.window_ms == pytest.approx(window / 1e6, rel=1e-9)
    assert used.compute_utilization == pytest.approx(1 - true["idle"] / window, rel=1e-9)
    assert used.sm_weighted_utilization == pytest.approx(trace.filled / window, rel=1e-9)
    (row,) = communication_by_rank([timeline]).to_dict("records")
    assert row["overlapped_ms"] == pytest.approx(true["both"] / 1e6, rel=1e-9)
    assert row["exposed_ms"] == pytest.approx(true["talk"] / 1e6, rel=1e-9)
    assert row["compute_ms"] == pytest.approx((true["compute"] + true["both"]) / 1e6, rel=1e-9)
