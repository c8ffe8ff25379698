"""Figures of traces: each rank's iteration and where its time goes, of anything that has work."""

from itertools import pairwise
from pathlib import Path

import pytest
from every_figure import MS, rank_timeline
from support import shared_files
from support.shared_files import samples
from support.timelines import timeline

from analysis.metrics.time.window import windowed
from analysis.readers.kineto.reader import read
from analysis.render.figure import Bars, Figure
from analysis.render.trace_figures import trace_figures
from analysis.timeline import Timeline

TRACES = shared_files.TRACES / "kineto"


def of_time(*timelines: Timeline) -> list[Figure]:
    return trace_figures(timelines).get("temporal_breakdown", [])


def lane(figure: Figure, name: str) -> Bars:
    (found,) = figure.panels[0].named(name)
    assert isinstance(found, Bars)
    return found


def test_the_step_of_median_length_is_shown_from_each_ranks_own_start() -> None:
    iteration, breakdown = of_time(rank_timeline(1), rank_timeline(0))
    assert (iteration.name, breakdown.name) == ("iteration_timeline", "time_breakdown")
    assert "step 1" in iteration.title and "marked steps" in breakdown.caption
    assert [text for _, text in iteration.panels[0].y.ticks or ()] == ["rank 0", "rank 1"]
    computation, exposed = lane(iteration, "computation"), lane(iteration, "exposed communication")
    assert computation.begin == pytest.approx((0, 0), abs=0.1) and computation.end == pytest.approx((40, 40), abs=0.1)
    assert exposed.begin == pytest.approx((40, 40), abs=0.1) and exposed.end == pytest.approx((60, 60), abs=0.1)


def test_the_shares_of_a_rank_add_up_to_the_window() -> None:
    _, breakdown = of_time(rank_timeline(0))
    parts = [one for one in breakdown.panels[0].series if isinstance(one, Bars)]
    assert parts[0].begin == (0,) and parts[-1].end == pytest.approx((100,))
    assert all(one.end == other.begin for one, other in pairwise(parts))


def test_the_caption_names_the_window_that_was_chosen_and_long_times_have_no_exponent() -> None:
    trace = timeline(0, kernels=[("sgemm", 7, 0, 20_000 * MS)])
    _, whole = of_time(trace)
    assert whole.caption.startswith("Over the whole trace;")
    assert [text for _, text in whole.panels[0].y.ticks or ()] == ["rank 0  (20,000 ms)"]
    kept, _ = windowed([trace], "1s..13.5s")
    _, chosen = of_time(*kept)
    assert chosen.caption.startswith("Over 1s..13.5s;")
    assert [text for _, text in chosen.panels[0].y.ticks or ()] == ["rank 0  (12,500 ms)"]


def test_communication_is_split_by_what_hides_it_and_who_waits() -> None:
    found = trace_figures([rank_timeline(rank, size=1 << 20) for rank in range(2)])
    (communication,) = found["all_reduce_by_rank"]
    hidden, transfer = lane(communication, "hidden behind computation"), lane(communication, "exposed transfer")
    # Three steps: 10 and 9 ms beside computation, 20 ms without, on both.
    assert hidden.end == pytest.approx((30, 27)) and transfer.end == pytest.approx((90, 87))
    (bandwidth,) = found["collectives"]
    (points,) = bandwidth.panels[0].series
    # The transfer is the shorter of 30 and 29 ms, and an all-reduce of two ranks moves each byte once.
    assert points.x == (2**20, 2**21, 2**22) and points.y[0] == pytest.approx(2**20 / 29e-3 / 1e9)


@pytest.mark.parametrize(
    "timelines",
    [
        [timeline(None, kernels=[("sgemm", 7, 0, 5 * MS)])],
        [rank_timeline(0), timeline(1, steps=[(9, 0, 10 * MS)], kernels=[("sgemm", 7, 0, 5 * MS)])],
    ],
    ids=["no steps", "no common step"],
)
def test_without_a_step_that_all_have_the_whole_trace_is_shown(timelines: list[Timeline]) -> None:
    assert "the whole trace" in of_time(*timelines)[0].title


def test_a_step_in_which_nothing_ran_is_idle() -> None:
    iteration, _ = of_time(timeline(0, steps=[(0, 0, 10)], kernels=[("sgemm", 7, 500, 600)]))
    assert not lane(iteration, "computation").end and lane(iteration, "idle").end


def test_many_ranks_are_cut_and_it_is_said() -> None:
    for figure in of_time(*(rank_timeline(rank, steps=1) for rank in range(18))):
        assert len(figure.panels[0].y.ticks or ()) == 16 and "first 16 of 18 ranks" in figure.caption


def test_a_cpu_trace_is_shown_and_an_empty_one_left_out() -> None:
    cpu = timeline(steps=[(0, 0, 100)], operators=[("aten::mm", 0, 40)], collectives=[("all_reduce", 30, 70)])
    assert all(len(figure.panels[0].y.ticks or ()) == 1 for figure in of_time(cpu, timeline(1)))
    assert of_time() == of_time(timeline()) == []


@pytest.mark.parametrize("folder", samples("kineto/nccl-4-ranks", "kineto/dlrm-8-ranks"))
def test_every_rank_of_a_job_is_shown(folder: Path) -> None:
    paths = sorted(folder.glob("*.json.gz"))
    figures = of_time(*(read(path) for path in paths))
    assert [len(figure.panels[0].y.ticks or ()) for figure in figures] == [len(paths)] * 2
