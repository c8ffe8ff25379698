"""Figures of traces, a bar per rank: one iteration on a time axis, where the time goes, what communication costs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from analysis import wording
from analysis.intervals import clipped, difference, intersection, merged
from analysis.metrics.communication.exposure import communication_by_rank
from analysis.metrics.communication.matching import match_collectives
from analysis.metrics.time.temporal import Temporal, temporal_breakdown
from analysis.metrics.time.window import work_time
from analysis.metrics.time.work import work_sets
from analysis.render.figure import Figure, bars, categories, legend, stacked, words
from analysis.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

Figures = dict[str, list[Figure]]

_LANES = {  # name -> color, middle in a rank's band from the top, and height
    "computation": ("blue", 0.135, 0.27),
    "exposed communication": ("vermilion", 0.405, 0.27),
    "hidden communication": ("hidden", 0.405, 0.27),
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
    first, figures = shown[:_MOST_RANKS], Figures()
    if shown:
        left_out = f" The first {len(first)} of {len(shown)} ranks are shown." if len(first) < len(shown) else ""
        iteration = iteration_figure([timeline for timeline, _ in first], left_out)
        figures["temporal_breakdown"] = [iteration, breakdown_figure([row for _, row in first], left_out)]
    if any(len(timeline.collectives) for timeline in timelines):
        figures["all_reduce_by_rank"] = [communication_figure(timelines)]
    return figures


def iteration_figure(timelines: Sequence[Timeline], left_out: str) -> Figure:
    """Return the timeline of each rank in one common step of median length, or else in the whole trace."""
    common = set.intersection(*({*timeline.steps["step"].tolist()} for timeline in timelines))
    steps = timelines[0].steps
    steps = steps[steps["step"].isin(common) & (steps["end"] > steps["start"])]
    lengths = steps.assign(ns=steps["end"] - steps["start"]).sort_values(["ns", "step"])["step"].tolist()
    step = int(lengths[len(lengths) // 2]) if lengths else None

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots()
        axes.set_xlabel("time since the rank's own start (ms)")
        categories(axes, [_rank(timeline.rank) for timeline in timelines])
        longest = 0.0
        for place, timeline in enumerate(timelines):
            whole = work_time(timeline, "kernels")
            if step is not None:
                whole = timeline.steps.loc[timeline.steps["step"] == step, ["start", "end"]].to_numpy(dtype=np.int64)
            assert whole is not None
            begin, end = int(whole[0, 0]), int(whole[0, 1])
            longest, pixel = max(longest, (end - begin) / 1e6), max(1, (end - begin) // _PIXELS)
            sets = work_sets(timeline)
            compute, communication = clipped(sets.compute, begin, end), clipped(sets.communication, begin, end)
            parts = {
                "computation": compute,
                "exposed communication": difference(communication, compute),
                "hidden communication": intersection(communication, compute),
                "copies": clipped(sets.memory, begin, end),
                "idle": difference(merged([begin], [end]), sets.busy),
            }
            for name, part in parts.items():
                # Pieces closer than a pixel are merged, shorter ones are one pixel wide.
                spans = merged(part[:, 0], part[:, 1] + pixel)
                ends = spans[:, 0] + np.maximum(spans[:, 1] - pixel - spans[:, 0], pixel)
                colour, middle, height = _LANES[name]
                at, starts = np.full(len(spans), place - 0.41 + middle), (spans[:, 0] - begin) / 1e6
                bars(axes, at, (ends - begin) / 1e6, name, colour, begin=starts, thickness=height)
        axes.set_xlim(0, longest or 1.0)
        legend(canvas, axes)

    what = "the whole trace" if step is None else f"step {step}"
    caption = (
        f"Work of each rank in {what}, relative to the rank's own start (clocks of ranks differ). Exposed "
        f"communication makes the step longer. Gaps narrower than a pixel are closed.{left_out}"
    )
    size = (10.6, 1.2 + 0.5 * len(timelines))
    return Figure(
        name="iteration_timeline", title=f"Timeline of one iteration ({what})", caption=caption, draw=draw, size=size
    )


def breakdown_figure(rows: Sequence[Temporal], left_out: str) -> Figure:
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
    caption = f"Over {window}; each moment counts once, so every bar adds up to 100 %. Only computation is useful work."
    size = (10.6, 1.2 + 0.32 * len(rows))
    return Figure(
        name="time_breakdown",
        title="Shares of the window by rank",
        caption=f"{caption}{left_out}",
        draw=draw,
        size=size,
    )


def communication_figure(timelines: Sequence[Timeline]) -> Figure:
    """Return one bar per rank: overlapped communication, exposed transfer, exposed wait.

    Where the traces do not split the exposed time, it is one part.
    """
    shown = timelines[:_MOST_RANKS]
    table = communication_by_rank(shown, match_collectives(timelines) if len(timelines) == len(shown) else None)
    split = table["exposed_wait_ms"].notna().to_numpy(dtype=bool)
    parts = {
        "hidden behind computation": ("hidden", table["overlapped_ms"].to_numpy()),
        "exposed transfer": ("vermilion", table["exposed_transfer_ms"].fillna(0.0).to_numpy()),
        "exposed wait for other ranks": ("orange", table["exposed_wait_ms"].fillna(0.0).to_numpy()),
        "exposed": ("wine", np.where(split, 0.0, table["exposed_ms"].to_numpy())),
    }

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots()
        axes.set(xlabel="communication in the window (ms)")
        categories(axes, [_rank(rank) for rank in table["rank"].tolist()])
        total = stacked(axes, parts)
        axes.set_xlim(0, 1.2 * max(float(total.max(initial=0.0)), 1e-6))
        for place, (part, whole) in enumerate(zip(total, table["window_ms"], strict=True)):
            words(axes, (part, place), f"{wording.short(part)} of {wording.number(whole)} ms", (4, 0), va="center")
        legend(canvas, axes)

    caption = (
        "Overlapped: computation ran at the same time. Transfer: the shortest duration of a collective on any rank. "
        "Wait: the rest, until the last rank arrived."
    )
    size = (10.6, 1.1 + 0.32 * max(1, len(table)))
    return Figure(name="communication", title="Communication per rank", caption=caption, draw=draw, size=size)


def _rank(rank: object) -> str:
    return f"rank {rank}" if isinstance(rank, int) else "rank ?"
