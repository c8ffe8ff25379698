"""Figures of traces, a bar per rank: one iteration on a time axis, where the time goes, what communication costs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import wording
from analysis.metrics.communication.exposure import communication_by_rank
from analysis.metrics.communication.matching import match_collectives
from analysis.metrics.time.temporal import Temporal, temporal_breakdown
from analysis.metrics.time.window import work_time
from analysis.metrics.time.work import WorkSets, work_sets
from analysis.render.figure import (
    Figure,
    Numbers,
    bars,
    categories,
    legend,
    stacked,
    words,
)
from analysis.spans import Intervals, clipped, difference, intersection, merged
from analysis.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

Figures = dict[str, list[Figure]]

_LANES = {  # name -> color, middle in a rank's band from the top, and height
    "computation": ("blue", 0.135, 0.27),
    "hidden communication": ("hidden", 0.405, 0.27),
    "exposed communication": ("vermilion", 0.405, 0.27),
    "copies": ("green", 0.61, 0.14),
    "idle": ("idle", 0.75, 0.14),
}
_MOST_RANKS = 16
_PIXELS = 800
_LEAST_LABELED = 4
"""Smallest part of a bar, in percent, that has its number written on it."""


def trace_figures(timelines: Sequence[Timeline]) -> Figures:
    """Return every figure for which the traces have data, of the first 16 ranks, by the name of its finding."""
    shown = [(timeline, row) for timeline in timelines if (row := temporal_breakdown(timeline)) is not None]
    shown.sort(key=lambda item: (item[1].rank is None, item[1].rank or 0))
    figures: Figures = {}
    if shown:
        first = shown[:_MOST_RANKS]
        figures["temporal_breakdown"] = [
            iteration_figure([timeline for timeline, _ in first], len(shown)),
            breakdown_figure([row for _, row in first], len(shown)),
        ]
    if any(len(timeline.collectives) for timeline in timelines):
        figures["all_reduce_by_rank"] = [communication_figure(timelines)]
    return figures


def iteration_figure(timelines: Sequence[Timeline], ranks: int) -> Figure:
    """Return the timeline of each rank in one common step, or in the whole trace; `ranks` is their number."""
    step = _step(timelines)

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots()
        axes.set_xlabel("time since the rank's own start (ms)")
        categories(axes, [_rank(timeline.rank) for timeline in timelines])
        longest = 0.0
        for place, timeline in enumerate(timelines):
            sets = work_sets(timeline)
            begin, end = _bounds(timeline, sets, step)
            longest = max(longest, (end - begin) / 1e6)
            for name, part in _lanes(sets, begin, end).items():
                colour, middle, height = _LANES[name]
                starts, ends = _pixels(part, begin, end)
                at = np.full(len(starts), place - 0.41 + middle)
                bars(axes, at, ends, name, colour, begin=starts, thickness=height)
        axes.set_xlim(0, longest or 1.0)
        legend(canvas, axes)

    what = "the whole trace" if step is None else f"step {step}"
    caption = (
        f"Work of each rank in {what}, relative to the rank's own start (clocks of ranks differ). Exposed "
        f"communication makes the step longer. Gaps narrower than a pixel are closed.{_left_out(len(timelines), ranks)}"
    )
    return Figure(
        name="iteration_timeline", title=f"Timeline of one iteration ({what})", caption=caption, draw=draw,
        size=(10.6, 1.2 + 0.5 * len(timelines)),
    )  # fmt: skip


def breakdown_figure(rows: Sequence[Temporal], ranks: int) -> Figure:
    """Return the share of the window that each rank spends on computation, communication, copies and idle."""
    parts = {
        "computation": ("blue", [row.compute_ns - row.overlapped_communication_ns for row in rows]),
        "computation over communication": ("sky", [row.overlapped_communication_ns for row in rows]),
        "exposed communication": ("vermilion", [row.exposed_communication_ns for row in rows]),
        "copies alone": ("green", [row.exposed_memory_ns for row in rows]),
        "idle": ("idle", [row.idle_ns for row in rows]),
    }
    spans = np.array([row.span_ns for row in rows])
    shares = {name: (colour, 100 * np.array(ns) / spans) for name, (colour, ns) in parts.items()}

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots()
        axes.set(xlabel="share of the window (%)", xlim=(0, 100))
        categories(axes, [f"{_rank(row.rank)}  ({wording.number(row.span_ns / 1e6)} ms)" for row in rows])
        stacked(axes, shares, _LEAST_LABELED)
        legend(canvas, axes)

    window = {"steps": "the marked steps", "kernels": "the whole trace"}.get(rows[0].window, rows[0].window)
    caption = (
        f"Over {window}; each moment counts once, so every bar adds up to 100 %. Only computation is useful "
        f"work.{_left_out(len(rows), ranks)}"
    )
    size = (10.6, 1.2 + 0.32 * len(rows))
    return Figure(name="time_breakdown", title="Where the time goes", caption=caption, draw=draw, size=size)


def communication_figure(timelines: Sequence[Timeline]) -> Figure:
    """Return one bar per rank: overlapped communication, exposed transfer, exposed wait.

    Where the traces do not split the exposed time, it is one part.
    """
    shown = timelines[:_MOST_RANKS]
    table = communication_by_rank(shown, match_collectives(timelines) if len(timelines) == len(shown) else None)
    split = table["exposed_wait_ms"].notna().to_numpy(dtype=bool)
    overlapped, exposed, window = (
        table[name].to_numpy(dtype=float) for name in ("overlapped_ms", "exposed_ms", "window_ms")
    )
    transfer = np.where(split, table["exposed_transfer_ms"].to_numpy(dtype=float, na_value=0.0), 0.0)
    parts = {
        "hidden behind computation": ("hidden", overlapped),
        "exposed transfer": ("vermilion", transfer),
        "exposed wait for other ranks": ("orange", np.where(split, exposed - transfer, 0.0)),
        "exposed": ("wine", np.where(split, 0.0, exposed)),
    }

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots()
        axes.set(xlabel="communication in the window (ms)")
        categories(axes, [_rank(rank) for rank in table["rank"].tolist()])
        total = stacked(axes, parts)
        axes.set_xlim(0, 1.2 * max(float(total.max(initial=0.0)), 1e-6))
        for place, (part, whole) in enumerate(zip(total, window, strict=True)):
            text = f"{wording.short(part)} of {wording.number(whole)} ms"
            words(axes, (part, place), text, (4, 0), va="center")
        legend(canvas, axes)

    caption = (
        "Overlapped: computation ran at the same time. Transfer: the shortest duration of a collective on any rank. "
        "Wait: the rest, until the last rank arrived."
    )
    size = (10.6, 1.1 + 0.32 * max(1, len(table)))
    return Figure(name="communication", title="Communication per rank", caption=caption, draw=draw, size=size)


def _step(timelines: Sequence[Timeline]) -> int | None:
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
    whole = work_time(timeline, "kernels")
    assert whole is not None
    return int(whole[0, 0]), int(whole[-1, 1])


def _lanes(sets: WorkSets, begin: int, end: int) -> dict[str, Intervals]:
    compute, communication = clipped(sets.compute, begin, end), clipped(sets.communication, begin, end)
    return {
        "computation": compute,
        "exposed communication": difference(communication, compute),
        "hidden communication": intersection(communication, compute),
        "copies": clipped(sets.memory, begin, end),
        "idle": difference(merged([begin], [end]), sets.busy),
    }


def _pixels(part: Intervals, begin: int, end: int) -> tuple[Numbers, Numbers]:
    """Return begin and end in ms; pieces closer than a pixel are merged, shorter ones are one pixel wide."""
    pixel = max(1, (end - begin) // _PIXELS)
    shown = merged(part[:, 0], part[:, 1] + pixel)
    lengths = np.maximum(shown[:, 1] - pixel - shown[:, 0], pixel)
    return (shown[:, 0] - begin) / 1e6, (shown[:, 0] + lengths - begin) / 1e6


def _rank(rank: Any) -> str:
    return f"rank {rank}" if isinstance(rank, int) else "rank ?"


def _left_out(shown: int, ranks: int) -> str:
    return f" The first {shown} of {ranks} ranks are shown." if shown < ranks else ""
