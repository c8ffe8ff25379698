"""Pictures of traces: one iteration of every rank on a time axis, and where the time of every rank goes."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from analysis.metrics.time.temporal import Temporal, WorkSets, temporal_breakdown, work_sets, work_window
from analysis.render.drawing import BLUE, GREEN, INK, SKY, STYLE, VERMILION, Picture, canvas, save
from analysis.spans import Intervals, clipped, difference, intersection, merged
from analysis.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

# Okabe and Ito's palette, as in the other pictures: backward's blue computes, exposed communication is vermilion.
_LANES = {
    "computation": BLUE,
    "hidden communication": "#F5B68A",
    "exposed communication": VERMILION,
    "copies": GREEN,
    "idle": "#C3C9D2",
}
_ROWS = {  # lane in a rank's band: where it stands, from the top, and how high
    "computation": (0.0, 0.27),
    "hidden communication": (0.27, 0.27),
    "exposed communication": (0.27, 0.27),
    "copies": (0.54, 0.14),
    "idle": (0.68, 0.14),
}
_MOST_RANKS = 16
_PIXELS = 3000


def draw_timelines(folder: Path, timelines: Sequence[Timeline]) -> list[Picture]:
    """Write `iteration_timeline.png` and `time_breakdown.png`; of what nothing can be drawn, none. Raises StorageError.

    Args:
        folder: where to.
        timelines: one per rank, at most 16 are drawn.
    """
    shown = [(timeline, row) for timeline in timelines if (row := temporal_breakdown(timeline)) is not None]
    shown.sort(key=lambda item: (item[1].rank is None, item[1].rank or 0))
    if not shown:
        return []
    import matplotlib

    with matplotlib.rc_context(STYLE):
        return [
            _iteration(folder, [timeline for timeline, _ in shown[:_MOST_RANKS]], len(shown)),
            _breakdown(folder, [row for _, row in shown[:_MOST_RANKS]], len(shown)),
        ]


def _iteration(folder: Path, timelines: Sequence[Timeline], ranks: int) -> Picture:
    step = _step(timelines)
    figure, (axis,) = canvas(10.6, 1.2 + 0.5 * len(timelines))
    longest = 0.0
    for place, timeline in enumerate(timelines):
        sets = work_sets(timeline)
        begin, end = _bounds(timeline, sets, step)
        longest = max(longest, (end - begin) / 1e6)
        if place % 2:
            axis.axhspan(place - 0.5, place + 0.5, color="#F5F7FA", zorder=0)
        for name, part in _lanes(sets, begin, end).items():
            top, height = _ROWS[name]
            _bars(axis, part, begin, end, place - 0.41 + top, height, _LANES[name])
    axis.set_yticks(range(len(timelines)), [_rank(timeline.rank) for timeline in timelines])
    axis.set_ylim(len(timelines) - 0.45, -0.55)
    axis.set_xlim(0, longest or 1.0)
    axis.set_xlabel("time since the rank's own start (ms)")
    axis.grid(axis="y", visible=False)
    _legend(figure, list(_LANES))
    path = folder / "iteration_timeline.png"
    save(figure, path)
    what = "the whole trace" if step is None else f"step {step}"
    caption = (
        f"What each rank does in {what}, from the rank's own start (clocks of ranks differ). "
        "Communication that computation does not hide is exposed: it makes the step longer. "
        f"Pieces closer together than a pixel are drawn as one.{_left_out(len(timelines), ranks)}"
    )
    return Picture(path, f"Timeline of one iteration ({what})", caption)


def _breakdown(folder: Path, rows: Sequence[Temporal], ranks: int) -> Picture:
    figure, (axis,) = canvas(10.6, 1.2 + 0.32 * len(rows))
    parts = {
        "computation": [row.compute_ns - row.overlapped_communication_ns for row in rows],
        "computation over communication": [row.overlapped_communication_ns for row in rows],
        "exposed communication": [row.exposed_communication_ns for row in rows],
        "copies alone": [row.exposed_memory_ns for row in rows],
        "idle": [row.idle_ns for row in rows],
    }
    colours = (BLUE, SKY, VERMILION, GREEN, "#E3E6EA")
    left = np.zeros(len(rows))
    for (label, values), colour in zip(parts.items(), colours, strict=True):
        shares = np.array([100 * value / row.span_ns for value, row in zip(values, rows, strict=True)])
        if not shares.max() > 0:
            continue
        axis.barh(range(len(rows)), shares, left=left, color=colour, label=label, height=0.68)
        for index, share in enumerate(shares):
            if share >= 4:
                ink = INK if label in ("idle", "computation over communication") else "white"
                place = (left[index] + share / 2, index)
                axis.text(*place, f"{share:.0f}", ha="center", va="center", color=ink, fontsize=8)
        left += shares
    axis.set_yticks(range(len(rows)), [f"{_rank(row.rank)}  ({row.span_ns / 1e6:,.4g} ms)" for row in rows])
    axis.set_ylim(len(rows) - 0.45, -0.55)
    axis.set_xlim(0, 100)
    axis.set_xlabel("share of the window (%)")
    axis.grid(axis="y", visible=False)
    figure.legend(loc="outside upper left", ncols=5, fontsize=8.5)
    path = folder / "time_breakdown.png"
    save(figure, path)
    window = "the marked steps" if rows[0].window == "steps" else "the whole trace"
    caption = (
        f"Over {window}; each moment counts once, so every bar adds up to 100 %. "
        f"Only computation is useful work.{_left_out(len(rows), ranks)}"
    )
    return Picture(path, "Where the time goes", caption)


def _step(timelines: Sequence[Timeline]) -> int | None:
    """The step of median length on the first rank, of those that all ranks have."""
    common: set[int] = set.intersection(*(set(timeline.steps["step"].tolist()) for timeline in timelines))
    table = timelines[0].steps
    rows = [
        (end - begin, number)
        for number, begin, end in zip(*(table[name].tolist() for name in ("step", "start", "end")), strict=True)
        if number in common and end > begin
    ]
    return int(sorted(rows)[len(rows) // 2][1]) if rows else None


def _bounds(timeline: Timeline, sets: WorkSets, step: int | None) -> tuple[int, int]:
    if step is not None:
        row = timeline.steps[timeline.steps["step"] == step].iloc[0]
        return int(row["start"]), int(row["end"])
    bounds = work_window(timeline, sets, "kernels")
    assert bounds is not None
    return bounds


def _lanes(sets: WorkSets, begin: int, end: int) -> dict[str, Intervals]:
    compute, communication = clipped(sets.compute, begin, end), clipped(sets.communication, begin, end)
    return {
        "computation": compute,
        "exposed communication": difference(communication, compute),
        "hidden communication": intersection(communication, compute),
        "copies": clipped(sets.memory, begin, end),
        "idle": difference(merged([begin], [end]), sets.busy),
    }


def _bars(axis: "Axes", part: Intervals, begin: int, end: int, top: float, height: float, colour: str) -> None:
    """Draw a lane; what is closer than a pixel becomes one bar, what is shorter than one is drawn as one."""
    pixel = max(1, (end - begin) // _PIXELS)
    shown = merged(part[:, 0], part[:, 1] + pixel)
    lengths = np.maximum(shown[:, 1] - pixel - shown[:, 0], pixel)
    bars = list(zip((shown[:, 0] - begin) / 1e6, lengths / 1e6, strict=True))
    axis.broken_barh(bars, (top, height), facecolors=colour, linewidth=0, zorder=2)


def _legend(figure: "Canvas", names: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=_LANES[name], label=name) for name in names]
    figure.legend(handles=patches, loc="outside upper left", ncols=5, fontsize=8.5)


def _rank(rank: int | None) -> str:
    return "rank ?" if rank is None else f"rank {rank}"


def _left_out(shown: int, ranks: int) -> str:
    return f" The first {shown} of {ranks} ranks are shown." if shown < ranks else ""
