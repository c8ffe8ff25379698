"""Pictures of communication: what of it is hidden, the collectives of one step, bandwidth against message size."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.metrics.communication.exposure import communication_by_rank, communication_set
from analysis.metrics.communication.matching import Matching, clock_offsets, match_collectives
from analysis.metrics.time.temporal import WorkSets, work_sets, work_window
from analysis.names import bus_factor
from analysis.render.drawing import BLUE, GREEN, GREY, ORANGE, PINK, SKY, STYLE, VERMILION, canvas, save, short_label
from analysis.spans import Intervals, clipped, difference, intersection
from analysis.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HIDDEN, _TRANSFER, _WAIT, _COMPUTE = SKY, VERMILION, ORANGE, BLUE
_KINDS = {
    "all_reduce": (BLUE, "o"),
    "all_gather": (GREEN, "s"),
    "reduce_scatter": (PINK, "D"),
    "all_to_all": (VERMILION, "^"),
    "broadcast": (ORANGE, "v"),
}
_OTHER = (GREY, "P")
_MOST_RANKS = 16
_MOST_POINTS = 5000


def draw_all_reduce_panel(path: Path, timelines: Sequence[Timeline]) -> Path:
    """Draw one bar per rank: communication that computation hides, exposed transfer, exposed wait; return `path`.

    Where the traces do not split the exposed time, it is one part. Raises StorageError.

    Args:
        path: PNG to write.
        timelines: one per rank, the first 16 are drawn; at least one with work in it.
    """
    import matplotlib

    shown = timelines[:_MOST_RANKS]
    table = communication_by_rank(shown, match_collectives(timelines) if len(timelines) == len(shown) else None)
    with matplotlib.rc_context(STYLE):
        figure, (axis,) = canvas(10.6, 1.1 + 0.32 * max(1, len(table)))
        split = table["exposed_wait_ms"].notna().to_numpy(dtype=bool)
        exposed, window = table["exposed_ms"].to_numpy(dtype=float), table["window_ms"].to_numpy(dtype=float)
        transfer = np.where(split, table["exposed_transfer_ms"].to_numpy(dtype=float, na_value=0.0), 0.0)
        wait = np.where(split, exposed - transfer, 0.0)
        parts = (
            ("hidden behind computation", table["overlapped_ms"].to_numpy(dtype=float), _HIDDEN),
            ("exposed transfer", transfer, _TRANSFER),
            ("exposed wait for other ranks", wait, _WAIT),
            ("exposed", np.where(split, 0.0, exposed), "#B8442E"),
        )
        places, left = range(len(table)), np.zeros(len(table))
        for name, values, colour in parts:
            if values.any():
                axis.barh(places, values, left=left, color=colour, label=name, height=0.68)
            left = left + values
        for place, total, whole in zip(places, left, window, strict=True):
            text = f"{total:.3g} of {whole:.4g} ms"
            axis.annotate(text, (total, place), (5, 0), textcoords="offset points", va="center", fontsize=8)
        axis.set_yticks(places, [_rank(rank) for rank in table["rank"].tolist()])
        axis.set_xlim(0, 1.16 * max(float(left.max(initial=0.0)), 1e-6))
        axis.invert_yaxis()
        axis.set_xlabel("communication in the window (ms)")
        axis.grid(axis="y", visible=False)
        figure.legend(loc="outside upper left", ncols=4, fontsize=8.5)
        save(figure, path)
    return path


def draw_bucket_timeline(path: Path, timelines: Sequence[Timeline]) -> Path:
    """Draw the last marked step of every rank: computation above, its collectives below; return `path`.

    Times are of the first rank's clock, from the first rank's start of the step. Raises StorageError.

    Args:
        path: PNG to write.
        timelines: one per rank, the first 16 are drawn; at least one with work in it.
    """
    import matplotlib

    matching = match_collectives(timelines)
    clocks = clock_offsets(timelines, matching).offsets_ns
    spans = []
    for member, timeline in enumerate(timelines[:_MOST_RANKS]):
        sets = work_sets(timeline)
        bounds = _last_step(timeline, sets)
        if bounds is not None:
            spans.append((member, sets, bounds))
    with matplotlib.rc_context(STYLE):
        figure, (axis,) = canvas(10.6, 1.1 + 0.46 * max(1, len(spans)))
        origin = min((bounds[0] - clocks[member] for member, _, bounds in spans), default=0)
        for place, (member, sets, bounds) in enumerate(spans):
            zero = origin + clocks[member]
            _lane(axis, clipped(sets.compute, *bounds), zero, place - 0.38, 0.36, _COMPUTE, "computation")
            for name, part, colour in _parts(matching, member, timelines[member], sets):
                _lane(axis, clipped(part, *bounds), zero, place + 0.02, 0.36, colour, name)
        axis.set_yticks(range(len(spans)), [_rank(timelines[member].rank) for member, _, _ in spans])
        axis.set_ylim(len(spans) - 0.5, -0.5)
        axis.margins(x=0.01)
        axis.set_xlabel("time from the start of the step (ms, clocks aligned)")
        axis.grid(axis="y", visible=False)
        entries = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
        figure.legend(entries.values(), entries.keys(), loc="outside upper left", ncols=5, fontsize=8.5)
        save(figure, path)
    return path


def draw_bandwidth(path: Path, timelines: Sequence[Timeline]) -> Path | None:
    """Draw bus bandwidth against message size, a point per collective; return `path`, None where no size is known.

    A matched collective is one point, with its transfer time; others are points of each rank, hollow, with their whole
    duration. Raises StorageError.

    Args:
        path: PNG to write.
        timelines: one per rank.
    """
    points = _bandwidths(timelines)
    if not points:
        return None
    import matplotlib
    from matplotlib.ticker import EngFormatter, FuncFormatter, NullFormatter

    with matplotlib.rc_context(STYLE):
        figure, (axis,) = canvas(5.2, 3.7)
        for kind, matched in sorted({(kind, matched) for kind, matched, _, _ in points}):
            own = [(size, rate) for name, split, size, rate in points if (name, split) == (kind, matched)]
            colour, marker = _KINDS.get(kind, _OTHER)
            axis.plot(
                [size for size, _ in own], [rate for _, rate in own], linestyle="none", marker=marker, markersize=5,
                color=colour, markerfacecolor=colour if matched else "none", alpha=0.6,
                label=short_label(kind if matched else f"{kind}, waiting included"),
            )  # fmt: skip
        axis.set_xscale("log")
        axis.set_yscale("log")
        # The style writes no formulas, which logarithmic axes use for their numbers.
        axis.xaxis.set_major_formatter(EngFormatter(unit="B", places=0))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        for part in (axis.xaxis, axis.yaxis):
            part.set_minor_formatter(NullFormatter())
        axis.margins(0.1)
        axis.set_xlabel("message size")
        axis.set_ylabel("bus bandwidth (GB/s)")
        figure.legend(loc="outside upper left", ncols=2, fontsize=8.5)
        save(figure, path)
    return path


def _rank(value: Any) -> str:
    return f"rank {value}" if isinstance(value, int) else "rank ?"


def _last_step(timeline: Timeline, sets: WorkSets) -> tuple[int, int] | None:
    """Its marks, and what its GPU still does after them where no other step follows."""
    bounds = work_window(timeline, sets)
    if bounds is None or not len(timeline.steps):
        return bounds
    begins = timeline.steps["start"].to_numpy()
    last = int(begins.argmax())
    end = max(int(timeline.steps["end"].iloc[last]), int(sets.busy[-1, 1]) if len(sets.busy) else 0)
    return int(begins[last]), end


def _parts(matching: Matching, member: int, timeline: Timeline, sets: WorkSets) -> list[tuple[str, Intervals, str]]:
    communication = communication_set(timeline, sets)
    exposed = difference(communication, sets.compute)
    hidden = ("hidden communication", intersection(communication, sets.compute), _HIDDEN)
    if not matching.complete(member):
        return [hidden, ("exposed communication", exposed, _TRANSFER)]
    transfer = matching.transfer_set(member)
    return [
        hidden,
        ("exposed wait", difference(exposed, transfer), _WAIT),
        ("exposed transfer", intersection(exposed, transfer), _TRANSFER),
    ]


def _lane(axis: "Axes", part: Intervals, zero: int, low: float, height: float, colour: str, name: str) -> None:
    if not len(part):
        return
    spans = np.column_stack([part[:, 0] - zero, part[:, 1] - part[:, 0]]) / 1e6
    axis.broken_barh(spans.tolist(), (low, height), facecolors=colour, linewidth=0, label=name)


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
