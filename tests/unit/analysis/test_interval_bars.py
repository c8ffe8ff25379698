"""Bars of intervals: one that reaches far beyond what was measured presses nothing flat, and is marked."""

import numpy as np
import pytest

from analysis.render.drawing import canvas, interval_bars


def test_an_interval_beyond_the_top_ends_there_with_an_arrow() -> None:
    _, (axis,) = canvas(4, 3)
    assert interval_bars(axis, [1, 2], [31.0, 124.0], [(30.0, 32.0), (-900.0, 5000.0)], 200.0, "#000000")
    assert axis.get_ylim()[1] < 250, "5,000 presses nothing flat"
    (arrows,) = [line for line in axis.lines if line.get_marker() == "^"]
    assert (np.asarray(arrows.get_xdata()).tolist(), np.asarray(arrows.get_ydata()).tolist()) == ([2], [200.0])


def test_intervals_within_the_top_are_drawn_whole_and_have_no_arrow() -> None:
    _, (axis,) = canvas(4, 3)
    assert not interval_bars(axis, [1], [100.0], [(90.0, 120.0)], 160.0, "#000000")
    (bars,) = axis.containers[0].lines[2]
    assert bars.get_segments()[0][:, 1].tolist() == pytest.approx([90.0, 120.0])
