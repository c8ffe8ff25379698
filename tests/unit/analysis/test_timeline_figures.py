"""Pictures of traces are drawn of anything that has work, and left out where there is none."""

from pathlib import Path

import pytest
from support import shared_files
from support.timelines import timeline

from analysis.readers.kineto.reader import read
from analysis.render.timeline_figures import draw_timelines
from analysis.timeline import Timeline

TRACES = shared_files.TRACES / "kineto"
MS = 1_000_000
BOTH = ["iteration_timeline.png", "time_breakdown.png"]


def gpu(rank: int | None, steps: int = 3) -> Timeline:
    kernels = []
    for step in range(steps):
        begin = step * 100 * MS
        kernels += [
            ("sgemm", 7, begin, begin + 40 * MS),
            ("ncclDevKernel_AllReduce", 9, begin + 30 * MS, begin + 60 * MS),
            ("Memcpy HtoD", 7, begin + 70 * MS, begin + 75 * MS, -1, "memcpy"),
        ]
    marks = [(step, step * 100 * MS, step * 100 * MS + (80 + step) * MS) for step in range(steps)]
    return timeline(rank, steps=marks, kernels=kernels)


def drawn(folder: Path, timelines: list[Timeline]) -> dict[str, str]:
    pictures = draw_timelines(folder, timelines)
    for picture in pictures:
        assert picture.path.read_bytes().startswith(b"\x89PNG") and picture.title and picture.caption
    return {picture.path.name: f"{picture.title} {picture.caption}" for picture in pictures}


def test_both_pictures_name_what_they_show(tmp_path: Path) -> None:
    said = drawn(tmp_path, [gpu(1), gpu(0)])
    assert list(said) == BOTH
    assert "step 1" in said["iteration_timeline.png"], "the one of median length"
    assert "marked steps" in said["time_breakdown.png"]


def test_a_trace_without_steps_is_drawn_whole(tmp_path: Path) -> None:
    said = drawn(tmp_path, [timeline(None, kernels=[("sgemm", 7, 0, 5 * MS)])])
    assert [name for name, text in said.items() if "the whole trace" in text] == BOTH


def test_ranks_without_a_common_step_are_drawn_whole(tmp_path: Path) -> None:
    other = timeline(1, steps=[(9, 0, 10 * MS)], kernels=[("sgemm", 7, 0, 5 * MS)])
    assert "the whole trace" in drawn(tmp_path, [gpu(0), other])["iteration_timeline.png"]


def test_a_step_in_which_nothing_ran_is_idle(tmp_path: Path) -> None:
    assert len(drawn(tmp_path, [timeline(0, steps=[(0, 0, 10)], kernels=[("sgemm", 7, 500, 600)])])) == 2


def test_many_ranks_are_cut_and_it_is_said(tmp_path: Path) -> None:
    said = drawn(tmp_path, [gpu(rank, steps=1) for rank in range(18)])
    assert [name for name, text in said.items() if "first 16 of 18 ranks" in text] == BOTH


def test_a_cpu_trace_is_drawn_and_an_empty_one_left_out(tmp_path: Path) -> None:
    cpu = timeline(steps=[(0, 0, 100)], operators=[("aten::mm", 0, 40)], collectives=[("all_reduce", 30, 70)])
    assert len(drawn(tmp_path, [cpu, timeline(1)])) == 2
    assert draw_timelines(tmp_path, []) == draw_timelines(tmp_path, [timeline()]) == []


@pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not beside this checkout")
def test_eight_real_ranks_are_drawn(tmp_path: Path) -> None:
    assert len(drawn(tmp_path, [read(path) for path in sorted((TRACES / "dlrm-8-ranks").glob("*.json.gz"))])) == 2
