"""Figures of traces, a bar per rank: one iteration on a time axis, where the time goes, what communication costs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis.diagnose.sentences import number
from analysis.metrics.communication.exposure import communication_by_rank, communication_set
from analysis.metrics.communication.matching import Matching, clock_offsets, match_collectives
from analysis.metrics.time.temporal import Temporal, temporal_breakdown
from analysis.metrics.time.window import work_window
from analysis.metrics.time.work import WorkSets, work_sets
from analysis.names import bus_factor
from analysis.render.figure import (
    Axis,
    Band,
    Bars,
    Figure,
    Line,
    Marker,
    Panel,
    Series,
    categories,
    short_label,
    size_axis,
    stacked,
)
from analysis.spans import Intervals, clipped, difference, intersection, merged
from analysis.timeline import Timeline
from analysis.wording import short

Figures = dict[str, list[Figure]]

_LANES = {  # name -> color, position in a rank's band from the top, and height
    "computation": ("blue", 0.0, 0.27),
    "hidden communication": ("hidden", 0.27, 0.27),
    "exposed communication": ("vermilion", 0.27, 0.27),
    "copies": ("green", 0.54, 0.14),
    "idle": ("idle", 0.68, 0.14),
}
_BUCKETS = {
    "computation": "blue",
    "hidden communication": "hidden",
    "exposed communication": "vermilion",
    "exposed wait": "orange",
    "exposed transfer": "vermilion",
}
_KINDS: dict[str, tuple[str, Marker]] = {
    "all_reduce": ("blue", "circle"),
    "all_gather": ("green", "square"),
    "reduce_scatter": ("pink", "diamond"),
    "all_to_all": ("vermilion", "triangle"),
    "broadcast": ("orange", "down"),
}
_OTHER: tuple[str, Marker] = ("grey", "plus")
_MOST_RANKS = 16
_MOST_POINTS = 5000
_PIXELS = 3000
_LEAST_LABELLED = 4
"""Smallest part of a bar, in percent, that is labeled with its number."""


def trace_figures(timelines: Sequence[Timeline]) -> Figures:
    """Return every figure for which the traces have data, by the name of its finding.

    Args:
        timelines: one per rank; the first 16 are drawn.
    """
    shown = [(timeline, row) for timeline in timelines if (row := temporal_breakdown(timeline)) is not None]
    shown.sort(key=lambda item: (item[1].rank is None, item[1].rank or 0))
    found: Figures = {}
    if shown:
        first = shown[:_MOST_RANKS]
        found["temporal_breakdown"] = [
            iteration_figure([timeline for timeline, _ in first], len(shown)),
            breakdown_figure([row for _, row in first], len(shown)),
        ]
    if any(len(timeline.collectives) for timeline in timelines):
        found["all_reduce_by_rank"] = [communication_figure(timelines)]
        found["buckets"] = [buckets_figure(timelines)]
        bandwidth = bandwidth_figure(timelines)
        if bandwidth is not None:
            found["collectives"] = [bandwidth]
    return found


def iteration_figure(timelines: Sequence[Timeline], ranks: int) -> Figure:
    """Return the timeline of each rank in one common step, or in the whole trace; `ranks` is their number."""
    step = _step(timelines)
    lanes: dict[str, list[tuple[float, float, float]]] = {name: [] for name in _LANES}
    longest = 0.0
    for place, timeline in enumerate(timelines):
        sets = work_sets(timeline)
        begin, end = _bounds(timeline, sets, step)
        longest = max(longest, (end - begin) / 1e6)
        for name, part in _lanes(sets, begin, end).items():
            _, top, height = _LANES[name]
            middle = place - 0.41 + top + height / 2
            lanes[name] += [(middle, *ends) for ends in _bars(part, begin, end)]
    what = "the whole trace" if step is None else f"step {step}"
    stripes: list[Series] = [
        Band(name="stripe", axis="y", low=place - 0.5, high=place + 0.5, colour="stripe")
        for place in range(1, len(timelines), 2)
    ]
    return Figure(
        name="iteration_timeline",
        title=f"Timeline of one iteration ({what})",
        caption=f"Work of each rank in {what}, relative to the rank's own start (clocks of ranks differ). "
        "Exposed communication does not overlap computation, so it makes the step longer. "
        f"Pieces closer together than a pixel are drawn as one.{_left_out(len(timelines), ranks)}",
        panels=[
            Panel(
                x=Axis(label="time since the rank's own start", unit="ms", low=0, high=longest or 1.0),
                y=categories([_rank(timeline.rank) for timeline in timelines]),
                series=[*stripes, *(_lane(name, _LANES[name][0], _LANES[name][2], lanes[name]) for name in lanes)],
            )
        ],
        size=(10.6, 1.2 + 0.5 * len(timelines)),
        legend_columns=5,
    )


def _lane(name: str, colour: str, thickness: float, spans: Sequence[tuple[float, float, float]]) -> Bars:
    """Return one kind of work on every rank as (place, begin, end)."""
    at, begin, end = zip(*spans, strict=True) if spans else ((), (), ())
    return Bars(name=name, colour=colour, at=at, begin=begin, end=end, thickness=thickness, across=True)


def breakdown_figure(rows: Sequence[Temporal], ranks: int) -> Figure:
    """Return the share of the window that each rank spends on computation, communication, copies and idle."""
    parts = {
        "computation": ("blue", [row.compute_ns - row.overlapped_communication_ns for row in rows]),
        "computation over communication": ("sky", [row.overlapped_communication_ns for row in rows]),
        "exposed communication": ("vermilion", [row.exposed_communication_ns for row in rows]),
        "copies alone": ("green", [row.exposed_memory_ns for row in rows]),
        "idle": ("faint", [row.idle_ns for row in rows]),
    }
    series, left = [], np.zeros(len(rows))
    for name, (colour, values) in parts.items():
        shares = np.array([100 * value / row.span_ns for value, row in zip(values, rows, strict=True)])
        if shares.max() > 0:
            texts = [f"{share:.0f}" if share >= _LEAST_LABELLED else "" for share in shares]
            series.append(stacked(name, colour, left, left + shares, texts))
        left = left + shares
    window = {"steps": "the marked steps", "kernels": "the whole trace"}.get(rows[0].window, rows[0].window)
    return Figure(
        name="time_breakdown",
        title="Where the time goes",
        caption=f"Over {window}; each moment counts once, so every bar adds up to 100 %. "
        f"Only computation is useful work.{_left_out(len(rows), ranks)}",
        panels=[
            Panel(
                x=Axis(label="share of the window", unit="%", low=0, high=100),
                y=categories([f"{_rank(row.rank)}  ({number(row.span_ns / 1e6)} ms)" for row in rows]),
                series=series,
            )
        ],
        size=(10.6, 1.2 + 0.32 * len(rows)),
        legend_columns=5,
    )


def communication_figure(timelines: Sequence[Timeline]) -> Figure:
    """Return one bar per rank: overlapped communication, exposed transfer, exposed wait.

    Where the traces do not split the exposed time, it is one part.

    Args:
        timelines: one per rank, the first 16 are drawn; at least one with work in it.
    """
    shown = timelines[:_MOST_RANKS]
    table = communication_by_rank(shown, match_collectives(timelines) if len(timelines) == len(shown) else None)
    split = table["exposed_wait_ms"].notna().to_numpy(dtype=bool)
    exposed, window = table["exposed_ms"].to_numpy(dtype=float), table["window_ms"].to_numpy(dtype=float)
    transfer = np.where(split, table["exposed_transfer_ms"].to_numpy(dtype=float, na_value=0.0), 0.0)
    wait = np.where(split, exposed - transfer, 0.0)
    total = table["overlapped_ms"].to_numpy(dtype=float) + exposed
    parts = (
        ("hidden behind computation", "hidden", table["overlapped_ms"].to_numpy(dtype=float)),
        ("exposed transfer", "vermilion", transfer),
        ("exposed wait for other ranks", "orange", wait),
        ("exposed", "wine", np.where(split, 0.0, exposed)),
    )
    series, left = [], np.zeros(len(table))
    for name, colour, values in parts:
        if values.any():
            series.append(stacked(name, colour, left, left + values))
        left = left + values
    said = [f"{short(part)} of {number(whole)} ms" for part, whole in zip(total, window, strict=True)]
    ends = Bars(
        name="of the window", at=range(len(total)), begin=total, end=total, labels=said, place="end", across=True,
        legend=False,
    )  # fmt: skip
    return Figure(
        name="communication",
        title="Communication per rank",
        caption="Overlapped: computation ran at the same time. Transfer: the shortest duration of a collective on any "
        "rank. Wait: the rest, until the last rank arrived.",
        panels=[
            Panel(
                x=Axis(
                    label="communication in the window",
                    unit="ms",
                    low=0,
                    high=1.16 * max(float(total.max(initial=0.0)), 1e-6),
                ),
                y=categories([_rank(rank) for rank in table["rank"].tolist()]),
                series=[*series, ends],
            )
        ],
        size=(10.6, 1.1 + 0.32 * max(1, len(table))),
    )


def buckets_figure(timelines: Sequence[Timeline]) -> Figure:
    """Return the last marked step of every rank, computation above its collectives.

    Times are of the first rank's clock, from the first rank's start of the step.

    Args:
        timelines: one per rank, the first 16 are drawn; at least one with work in it.
    """
    matching = match_collectives(timelines)
    offsets = clock_offsets(timelines, matching)["offset_us"].fillna(0.0)
    clocks = (offsets * 1e3).round().astype("int64").tolist()
    shown = []
    for member, timeline in enumerate(timelines[:_MOST_RANKS]):
        sets = work_sets(timeline)
        bounds = _last_step(timeline, sets)
        if bounds is not None:
            shown.append((member, sets, bounds))
    origin = min((bounds[0] - clocks[member] for member, _, bounds in shown), default=0)
    lanes: dict[str, list[tuple[float, float, float]]] = {name: [] for name in _BUCKETS}
    for place, (member, sets, bounds) in enumerate(shown):
        zero = origin + clocks[member]
        parts = {"computation": sets.compute, **_parts(matching, member, timelines[member], sets)}
        for name, part in parts.items():
            middle = place - 0.2 if name == "computation" else place + 0.2
            lanes[name] += [
                (middle, (begin - zero) / 1e6, (end - zero) / 1e6) for begin, end in clipped(part, *bounds).tolist()
            ]
    return Figure(
        name="buckets",
        title="Collectives of one step",
        caption="Collectives by rank and time. Exposed parts do not overlap computation.",
        panels=[
            Panel(
                x=Axis(label="time from the start of the step", unit="ms, clocks aligned"),
                y=categories([_rank(timelines[member].rank) for member, _, _ in shown]),
                series=[_lane(name, _BUCKETS[name], 0.36, spans) for name, spans in lanes.items() if spans],
            )
        ],
        size=(10.6, 1.1 + 0.46 * max(1, len(shown))),
        legend_columns=5,
    )


def bandwidth_figure(timelines: Sequence[Timeline]) -> Figure | None:
    """Return bus bandwidth by message size, one point per collective; None if no size is known.

    A matched collective is one point, with its transfer time; others are points of each rank, hollow, with their whole
    duration.

    Args:
        timelines: one per rank.
    """
    points = _bandwidths(timelines)
    if not points:
        return None
    series = []
    for kind, matched in sorted({(kind, matched) for kind, matched, _, _ in points}):
        own = [(size, rate) for name, split, size, rate in points if (name, split) == (kind, matched)]
        colour, marker = _KINDS.get(kind, _OTHER)
        series.append(
            Line(
                name=short_label(kind if matched else f"{kind}, waiting included"),
                x=[size for size, _ in own],
                y=[rate for _, rate in own],
                colour=colour,
                opacity=0.6,
                dash="none",
                marker=marker,
                hollow=not matched,
            )
        )
    return Figure(
        name="bandwidth",
        title="Bus bandwidth by message size",
        caption="One point per collective. Latency limits small messages, link bandwidth large ones.",
        panels=[
            Panel(
                x=size_axis("message size", [size for _, _, size, _ in points]),
                y=Axis(label="bus bandwidth", unit="GB/s", scale="log", form="number"),
                series=series,
            )
        ],
        size=(5.2, 3.7),
        legend_columns=2,
    )


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
    bounds = work_window(timeline, sets, "kernels")
    assert bounds is not None
    return bounds


def _last_step(timeline: Timeline, sets: WorkSets) -> tuple[int, int] | None:
    bounds = work_window(timeline, sets)
    if bounds is None or not len(timeline.steps):
        return bounds
    begins = timeline.steps["start"].to_numpy()
    last = int(begins.argmax())
    end = max(int(timeline.steps["end"].iloc[last]), int(sets.busy[-1, 1]) if len(sets.busy) else 0)
    return int(begins[last]), end


def _lanes(sets: WorkSets, begin: int, end: int) -> dict[str, Intervals]:
    compute, communication = clipped(sets.compute, begin, end), clipped(sets.communication, begin, end)
    return {
        "computation": compute,
        "exposed communication": difference(communication, compute),
        "hidden communication": intersection(communication, compute),
        "copies": clipped(sets.memory, begin, end),
        "idle": difference(merged([begin], [end]), sets.busy),
    }


def _bars(part: Intervals, begin: int, end: int) -> list[tuple[float, float]]:
    """Return begin and end in ms; pieces closer than a pixel are merged, shorter ones are one pixel wide."""
    pixel = max(1, (end - begin) // _PIXELS)
    shown = merged(part[:, 0], part[:, 1] + pixel)
    lengths = np.maximum(shown[:, 1] - pixel - shown[:, 0], pixel)
    starts = (shown[:, 0] - begin) / 1e6
    return [*zip(starts.tolist(), (starts + lengths / 1e6).tolist(), strict=True)]


def _parts(matching: Matching, member: int, timeline: Timeline, sets: WorkSets) -> dict[str, Intervals]:
    communication = communication_set(timeline, sets)
    exposed = difference(communication, sets.compute)
    hidden = {"hidden communication": intersection(communication, sets.compute)}
    if not matching.complete(member):
        return {**hidden, "exposed communication": exposed}
    transfer = matching.transfer_set(member)
    return {
        **hidden,
        "exposed wait": difference(exposed, transfer),
        "exposed transfer": intersection(exposed, transfer),
    }


def _bandwidths(timelines: Sequence[Timeline]) -> list[tuple[str, bool, float, float]]:
    """kind, whether waiting is taken off, bytes, GB/s."""
    matching = match_collectives(timelines)
    found = []
    seen: set[int] = set()
    for member, timeline in enumerate(timelines):
        table = timeline.collectives
        transfers = matching.transfer_ns(member, len(table))
        own = matching.members[matching.members["member"] == member]
        matches = dict(zip(own["index"].tolist(), own["match"].tolist(), strict=True))
        columns = (table[name].tolist() for name in ("collective", "bytes", "group_size", "start", "end"))
        for index, (kind, size, members, start, end) in enumerate(zip(*columns, strict=True)):
            factor, split = bus_factor(str(kind), int(members)), bool(transfers[index] > 0)
            length = float(transfers[index]) if split else float(end - start)
            if not factor or size <= 0 or length <= 0 or (split and matches[index] in seen):
                continue
            seen.add(matches.get(index, -1))
            found.append((str(kind), split, float(size), size * factor / length))
    step = -(-len(found) // _MOST_POINTS) or 1
    return found[::step]


def _rank(rank: Any) -> str:
    return f"rank {rank}" if isinstance(rank, int) else "rank ?"


def _left_out(shown: int, ranks: int) -> str:
    return f" The first {shown} of {ranks} ranks are shown." if shown < ranks else ""
