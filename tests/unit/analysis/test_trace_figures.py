"""Figures of traces: each rank's iteration and where its time goes, of anything that has work."""

from pathlib import Path

import pytest
from support import shared_files
from support.charts import titles, values
from support.shared_files import samples
from support.timelines import timeline

from analysis.metrics.time.window import windowed
from analysis.readers.kineto.reader import read
from analysis.render import figure as charts
from analysis.render.figure import Figure
from analysis.render.trace_figures import trace_figures
from analysis.timeline import Timeline

TRACES = shared_files.TRACES / "kineto"


MS = 1_000_000


def rank_timeline(rank: int | None, steps: int = 3, size: int = 0) -> Timeline:
    kernels = []
    for step in range(steps):
        begin = step * 100 * MS
        kernels += [
            ("sgemm", 7, begin, begin + 40 * MS),
            ("ncclDevKernel_AllReduce", 9, begin + (30 + (rank or 0)) * MS, begin + 60 * MS),
            ("Memcpy HtoD", 7, begin + 70 * MS, begin + 75 * MS, -1, "memcpy"),
        ]
    marks = [(step, step * 100 * MS, step * 100 * MS + (80 + step) * MS) for step in range(steps)]
    calls = [
        ("all_reduce", (step * 100 + 30 + (rank or 0)) * MS, (step * 100 + 60) * MS, size << step, -1, 9, "", 2, step)
        for step in range(steps)
    ]
    return timeline(rank, steps=marks, kernels=kernels, collectives=calls)


def of_time(*timelines: Timeline) -> list[Figure]:
    return trace_figures(timelines).get("temporal_breakdown", [])


def ranks(figure: Figure) -> list[str]:
    return [label.get_text() for label in charts.drawn(figure).axes[0].get_yticklabels()]


def test_the_step_of_median_length_is_shown_from_each_ranks_own_start() -> None:
    iteration, breakdown = of_time(rank_timeline(1), rank_timeline(0))
    assert (iteration.name, breakdown.name) == ("iteration_timeline", "time_breakdown")
    assert "step 1" in iteration.title and "marked steps" in breakdown.caption
    assert ranks(iteration) == ["rank 0", "rank 1"]
    assert values(iteration, "computation") == pytest.approx([40, 40], abs=0.1)
    assert values(iteration, "exposed communication") == pytest.approx([20, 20], abs=0.1)
    assert sum(sum(values(breakdown, name)) for name in titles(breakdown)) == pytest.approx(200, abs=0.2)
    assert all("(40.00–60.00)" in lines[2] for lines in titles(iteration)["exposed communication"])  # noqa: RUF001


def test_the_caption_names_the_window_that_was_chosen_and_long_times_have_no_exponent() -> None:
    trace = timeline(0, kernels=[("sgemm", 7, 0, 20_000 * MS)])
    _, whole = of_time(trace)
    assert whole.caption.startswith("Over the whole trace;") and ranks(whole) == ["rank 0  (20,000 ms)"]
    _, chosen = of_time(*windowed([trace], "1s..13.5s")[0])
    assert chosen.caption.startswith("Over 1s..13.5s;") and ranks(chosen) == ["rank 0  (12,500 ms)"]


def test_communication_is_split_by_what_hides_it_and_who_waits() -> None:
    figures = trace_figures([rank_timeline(rank, size=1 << 20) for rank in range(2)])
    (communication,) = figures["all_reduce_by_rank"]
    # Three steps: 10 and 9 ms beside computation, 20 ms without, on both.
    assert values(communication, "hidden behind computation") == pytest.approx([30, 27])
    assert values(communication, "exposed transfer") == pytest.approx([60, 60])


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


def test_many_ranks_are_cut_a_still_step_is_idle_and_a_cpu_trace_is_shown() -> None:
    for figure in of_time(*(rank_timeline(rank, steps=1) for rank in range(18))):
        assert len(ranks(figure)) == 16 and "first 16 of 18 ranks" in figure.caption
    iteration, _ = of_time(timeline(0, steps=[(0, 0, 10)], kernels=[("sgemm", 7, 500, 600)]))
    assert set(titles(iteration)) == {"idle"}
    cpu = timeline(steps=[(0, 0, 100)], operators=[("aten::mm", 0, 40)], collectives=[("all_reduce", 30, 70)])
    assert all(len(ranks(figure)) == 1 for figure in of_time(cpu, timeline(1)))
    assert of_time() == of_time(timeline()) == []


@pytest.mark.parametrize("folder", samples("kineto/nccl-4-ranks", "kineto/dlrm-8-ranks"))
def test_every_rank_of_a_job_is_shown_in_a_small_picture(folder: Path) -> None:
    paths = sorted(folder.glob("*.json.gz"))
    for figure in of_time(*(read(path) for path in paths)):
        assert len(ranks(figure)) == len(paths) and len(charts.figure_html(figure)) < 400_000
