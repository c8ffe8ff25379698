"""Figures of profiles: one iteration and where the time goes by rank; use of cores by kind of work; the roofline."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import wording
from analysis.counters import KernelCounters
from analysis.intervals import difference, intersection, merged
from analysis.metrics.communication.exposure import communication_by_rank
from analysis.metrics.communication.matching import match_collectives
from analysis.metrics.kernels.core_utilization import FOUR, core_use_by_family
from analysis.metrics.kernels.ncu_metrics import DRAM, DRAM_LEVEL, L1, L2, LEVEL_KINDS
from analysis.metrics.kernels.roofline import Roofline, is_bandwidth, roofline
from analysis.metrics.time.temporal import Temporal, temporal_breakdown
from analysis.metrics.time.window import work_sets, work_time
from analysis.render.figure import (
    COLOURS,
    LINE,
    Figure,
    Numbers,
    bars,
    categories,
    legend,
    logarithmic,
    short_label,
    stacked,
    value_text,
    words,
)
from analysis.timeline import Timeline

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
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
_PIPES = {"fma": "blue", "fp16": "sky", "tensor": "vermilion", "sfu": "orange"}
# A kind of work has the same color in every figure.
_FAMILIES = {
    "GEMM": "vermilion", "attention": "blue", "norm": "green", "elementwise": "orange", "optimizer": "pink",
    "dropout": "sky", "softmax and loss": "purple", "embedding": "brown", "copy": "grey",
    "activation": "yellow", "reduction and sort": "wine", "communication": "ink",
}  # fmt: skip
_MOST_KERNELS = 200
_LARGEST, _SMALLEST = 420.0, 14.0
"""Areas of kernels in square points."""
_MOST_LEVELS = 12
_MARKERS = {L1: "^", L2: "s", DRAM_LEVEL: "o"}


def trace_figures(timelines: Sequence[Timeline]) -> Figures:
    """Return every figure for which the traces have data, of the first 16 ranks, by the name of its finding."""
    shown = [(timeline, row) for timeline in timelines if (row := temporal_breakdown(timeline)) is not None]
    shown.sort(key=lambda item: (item[1].rank is None, item[1].rank or 0))
    if not shown:
        return {}
    first = shown[:_MOST_RANKS]
    left_out = f" The first {len(first)} of {len(shown)} ranks are shown." if len(first) < len(shown) else ""
    iteration = iteration_figure([timeline for timeline, _ in first], left_out)
    waits: dict[object, float] = {}
    if len(timelines) <= _MOST_RANKS and any(len(timeline.collectives) for timeline in timelines):
        by_rank = communication_by_rank(timelines, match_collectives(timelines))
        waits = dict(zip(by_rank["rank"], 1e6 * by_rank["exposed_wait_ms"].fillna(0.0), strict=True))
    return {"temporal_breakdown": [iteration, breakdown_figure([row for _, row in first], waits, left_out)]}


def iteration_figure(timelines: Sequence[Timeline], left_out: str) -> Figure:
    """Return the timeline of each rank in one common step of median length, or else in the whole trace."""
    common = set.intersection(*({*timeline.steps["step"].tolist()} for timeline in timelines))
    columns = (timelines[0].steps[name].tolist() for name in ("step", "start", "end"))
    lengths = sorted((end - start, step) for step, start, end in zip(*columns, strict=True) if step in common)
    lengths = [one for one in lengths if one[0] > 0]
    step = lengths[len(lengths) // 2][1] if lengths else None

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
            compute, communication = intersection(sets.compute, whole), intersection(sets.communication, whole)
            parts = {
                "computation": compute,
                "exposed communication": difference(communication, compute),
                "hidden communication": intersection(communication, compute),
                "copies": intersection(sets.memory, whole),
                "idle": difference(whole, sets.busy),
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


def breakdown_figure(rows: Sequence[Temporal], waits: Mapping[object, float], left_out: str) -> Figure:
    """Return the share of the window that each rank spends on computation, communication, copies and idle.

    `waits` are the parts of exposed communication, ns by rank, in which the rank waited for others, where it is known.
    """
    exposed = np.array([row.exposed_communication_ns for row in rows])
    waiting = np.minimum(exposed, [waits.get(row.rank, 0.0) for row in rows])
    parts: dict[str, tuple[str, Numbers]] = {
        "computation": ("blue", [row.compute_ns - row.overlapped_communication_ns for row in rows]),
        "computation over communication": ("sky", [row.overlapped_communication_ns for row in rows]),
        f"exposed {'transfer' if waiting.any() else 'communication'}": ("vermilion", exposed - waiting),
        "exposed wait for other ranks": ("orange", waiting),
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
    caption += " A rank waits until the last one has begun a collective." if waiting.any() else ""
    size = (10.6, 1.2 + 0.32 * len(rows))
    return Figure(
        name="time_breakdown",
        title="Shares of the window by rank",
        caption=f"{caption}{left_out}",
        draw=draw,
        size=size,
    )


def _rank(rank: object) -> str:
    return f"rank {rank}" if isinstance(rank, int) else "rank ?"


def kernel_figures(counters: KernelCounters, ending: str = "") -> Figures:
    """Return every figure for which the counters have data, by the name of its finding."""
    groups, lines = core_use_by_family(counters), roofline(counters)
    figures: Figures = {}
    if groups.filter(like="_percent").notna().any(axis=None):
        figures[f"core_utilization_by_family{ending}"] = [core_utilization_figure(groups, f"cores{ending}")]
    if lines.kernels["achieved_flops"].notna().any():
        figures[f"roofline{ending}"] = [roofline_figure(lines, f"roofline{ending}")]
    return figures


def core_utilization_figure(groups: "pd.DataFrame", name: str = "cores") -> Figure:
    """Return a group of bars per kind of work, of what `core_use_by_family` returned.

    A pipe that is not in the file is named in the caption; a bar of 0 has its number.
    """
    known = [pipe for pipe in FOUR if groups[f"{pipe}_percent"].notna().any()]
    missing = [FOUR[pipe] for pipe in FOUR if pipe not in known]

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots()
        axes.set(xlabel="kind of work", ylabel="share of the peak rate (%)", xlim=(-0.6, max(len(groups) - 0.4, 0.6)))
        axes.set_xticks(range(len(groups)), ["\n".join(textwrap.wrap(short_label(name), 13)) for name in groups.index])
        axes.grid(axis="x", visible=False)
        thickness = 0.8 / max(1, len(known))
        for position, pipe in enumerate(known):
            places = np.arange(len(groups)) + (position - (len(known) - 1) / 2) * thickness
            values = groups[f"{pipe}_percent"].to_numpy(dtype=float)
            places, values = places[values >= 0], values[values >= 0]
            texts = [f"{value:.0f}" if value >= 9.5 or value == 0 else f"{value:.1f}" for value in values]
            look: dict[str, Any] = {"thickness": 0.9 * thickness, "across": False, "labels": texts}
            bars(axes, places, values, FOUR[pipe], _PIPES[pipe], **look)
        axes.set_ylim(0, 1.15 * max(5.0, axes.dataLim.y1))
        legend(canvas, axes)

    caption = "Share of the peak rate while kernels of this kind run."
    caption += f" Not in this file: {', '.join(missing)}." if missing else ""
    size = (max(5.2, 1.6 + 1.0 * len(groups)), 3.7)
    return Figure(name=name, title="Core utilization", caption=caption, draw=draw, size=size)


def roofline_figure(lines: Roofline, name: str = "roofline") -> Figure:
    """Return every kernel by arithmetic intensity and rate, with the ceilings: a hierarchical roofline.

    Colors are kinds of work, areas times. The circle of a kernel is at its operations per byte of DRAM; of the 12
    longest a square and a triangle are at those per byte of L2 and L1/TEX. Each level with a known peak has a slope.
    """
    table = lines.kernels.head(_MOST_KERNELS)
    columns = [f"{kind}_flop_per_byte" for kind in LEVEL_KINDS.values()]
    placed = table[table[columns].gt(0).any(axis=1) & (table["achieved_flops"] > 0)]
    drawn = {*placed["flop_type"], DRAM, *(k for k in LEVEL_KINDS.values() if (placed[f"{k}_bytes"] > 0).any())}
    peaks = {kind: rate for kind, rate in lines.ceilings.items()
             if kind in drawn or not (len(placed) or is_bandwidth(kind))}  # fmt: skip

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots()
        axes.set(xlabel="arithmetic intensity (FLOP per byte)", ylabel="rate")
        logarithmic(axes, "x")
        logarithmic(axes, "y", wording.flops)
        _draw_kernels(axes, placed)
        legend(canvas, axes, loc="outside right upper", title="kind of work", ncols=1)
        _draw_ceilings(canvas, axes, placed, peaks)

    parts = ["Memory limits kernels near a slope, cores those near the roof; latency those far below both."]
    shapes = "Circle: bytes of DRAM; square: of L2; triangle: of L1/TEX."
    parts += [shapes] if placed[columns[:-1]].gt(0).any(axis=None) else []
    if left := len(lines.kernels) - len(placed):
        parts.append(f"{left} of {len(lines.kernels)} kernels have no counted operations and no place.")
    parts += ["The memory peak is unknown."] if DRAM not in lines.ceilings else []
    parts += ["The compute peak is unknown."] if all(map(is_bandwidth, lines.ceilings)) else []
    return Figure(name=name, title="Roofline", caption=" ".join(parts), draw=draw, size=(8.2, 4.6))


def _draw_ceilings(canvas: "Canvas", axes: "Axes", placed: "pd.DataFrame", peaks: Mapping[str, float]) -> None:
    """Draw the slopes of the levels, each type's peak from where no level is its ceiling, and labels where they fit."""
    roofs = sorted((rate, kind) for kind, rate in peaks.items() if not is_bandwidth(kind))
    slopes = {level: peaks[kind] for level, kind in LEVEL_KINDS.items() if kind in peaks}
    places = placed[[f"{kind}_flop_per_byte" for kind in LEVEL_KINDS.values()]].to_numpy()
    xs = [*places[places > 0].tolist(), *(roof / slope for roof, _ in roofs for slope in slopes.values())]
    xs = xs or [0.1, 1000.0]
    ys = [*placed["achieved_flops"], *(roof for roof, _ in roofs)] or [1e9, 1e13]
    left, right = 10 ** (math.floor(math.log10(min(xs))) - 0.3), 10 ** (math.ceil(math.log10(max(xs))) + 0.3)
    low, high = 0.5 * 10 ** math.floor(math.log10(min(ys)) - 0.2), 3 * max(ys)
    axes.set(xlim=(left, right), ylim=(low, high))
    line: dict[str, Any] = {"color": COLOURS["ink"][0], "linewidth": 1.2}
    labeled = 0.0
    for roof, kind in roofs:
        axes.plot([max(left, roof / max(slopes.values(), default=roof / left)), right], [roof, roof], **line)
        if math.log10(roof / (labeled or roof / high)) / math.log10(high / low) > 0.05:
            text = f"{kind.replace('_', ' ')} {wording.flops(roof)}"
            words(axes, (right, roof), text, (-3, 3), ha="right", va="bottom")
            labeled = roof
    canvas.draw_without_rendering()  # the angle of a slope follows from the layout
    (x0, y0), (x1, y1) = axes.transData.transform([(left, low), (10 * left, 10 * low)])
    for level, slope in slopes.items():
        end = min(right, (roofs[-1][0] if roofs else high) / slope)
        axes.plot([left, end], [left * slope, end * slope], **line)
        at = max(left, low / slope) * 10 ** (0.04 * math.log10(right / left))
        text, angle = f"{level} {slope / 1e9:,.0f} GB/s", math.degrees(math.atan2(y1 - y0, x1 - x0))
        words(axes, (at, at * slope), text, (-3, 3), va="bottom", rotation=angle, rotation_mode="anchor")


def _draw_kernels(axes: "Axes", placed: "pd.DataFrame") -> None:
    times = placed["time_ms"].fillna(0.0)
    longest = times.max() or 1.0
    for family in times.groupby(placed["family"], sort=False).sum().sort_values(ascending=False, kind="stable").index:
        colour = COLOURS[_FAMILIES.get(family, "pale")][0]
        for level, kind in LEVEL_KINDS.items():
            column, dram = f"{kind}_flop_per_byte", level == DRAM_LEVEL
            members = placed if dram else placed.head(_MOST_LEVELS)
            members = members[(members["family"] == family) & (members[column] > 0)]
            areas = (_LARGEST * times[members.index] / longest).clip(lower=_SMALLEST) if dram else 25.0
            titles = [
                LINE.join((f"{short_label(name)}, {level}", value_text(axes.xaxis, x), value_text(axes.yaxis, y)))
                for name, x, y in members[["name", column, "achieved_flops"]].itertuples(index=False)
            ]
            axes.scatter(
                members[column], members["achieved_flops"], areas, colour, marker=_MARKERS[level], alpha=0.75,
                linewidths=0, zorder=3, urls=titles, gid=f"series:{short_label(family)}",
            )  # fmt: skip
        axes.plot([], [], "o", color=colour, label=short_label(family), markersize=6.5)
