"""Figures of kernel counters: core utilization by kind of work, and the roofline."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis import wording
from analysis.counters import KernelCounters
from analysis.metrics.kernels.ceilings import DRAM, LEVEL_KINDS, is_bandwidth
from analysis.metrics.kernels.core_utilization import FOUR, CoreUse, core_use_by_family
from analysis.metrics.kernels.ncu_metrics import DRAM_LEVEL, L1, L2
from analysis.metrics.kernels.roofline import Roofline, roofline
from analysis.render.figure import COLOURS, LINE, Figure, bars, legend, logarithmic, short_label, value_text, words
from analysis.render.trace_figures import Figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

Row = Mapping[str, Any]

_PIPES = {"fma": "blue", "fp16": "sky", "tensor": "vermilion", "sfu": "orange"}
# A kind of work has the same color in every figure.
_FAMILIES = {
    "GEMM": "vermilion", "attention": "blue", "norm": "green", "elementwise": "orange", "optimizer": "pink",
    "dropout": "sky", "softmax and loss": "purple", "embedding": "brown", "copy": "grey",
    "activation": "yellow", "reduction and sort": "wine", "communication": "ink",
}  # fmt: skip
_MOST_GROUPS = 12
_MOST_KERNELS = 200
_LARGEST, _SMALLEST = 420.0, 14.0
"""Areas of kernels in square points."""
_MOST_LEVELS = 12
# Where a kernel lies by the bytes of each level: column of its intensity, and marker.
_PLACES = {L1: ("l1_flop_per_byte", "^"), L2: ("l2_flop_per_byte", "s"), DRAM_LEVEL: ("intensity_flop_per_byte", "o")}
_SHAPES = "Circle: bytes of DRAM; square: of L2; triangle: of L1/TEX."


def kernel_figures(counters: KernelCounters, ending: str = "", measured: Mapping[str, float] | None = None) -> Figures:
    """Return every figure for which the counters have data, by the name of its finding."""
    figures: Figures = {}
    groups = core_use_by_family(counters)
    if any(use.percent is not None for group in groups.values() for use in group.pipes.values()):
        figures[f"core_utilization_by_family{ending}"] = [
            core_utilization_figure(groups, "kind of work", name=f"cores{ending}")
        ]
    lines = roofline(counters, measured)
    if len(lines.kernels) and lines.kernels["achieved_flops"].notna().any():
        figures[f"roofline{ending}"] = [roofline_figure(lines, name=f"roofline{ending}")]
    return figures


def core_utilization_figure(groups: Mapping[str, CoreUse], label: str, name: str = "cores") -> Figure:
    """Return a group of four bars per batch size, kind of work or phase.

    A pale bar behind FMA and tensor cores is the share of cycles in which the pipe worked at all. A pipe that is not in
    the file is named in the caption; a bar of 0 has its number.
    """
    shown = list(groups)[:_MOST_GROUPS]
    known = [pipe for pipe in FOUR if any(_percent(groups[group], pipe) is not None for group in shown)]
    missing = [FOUR[pipe] for pipe in FOUR if pipe not in known]

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots()
        axes.set(xlabel=label, ylabel="share of the peak rate (%)", xlim=(-0.6, max(len(shown) - 0.4, 0.6)))
        axes.set_xticks(range(len(shown)), ["\n".join(textwrap.wrap(short_label(group), 13)) for group in shown])
        axes.grid(axis="x", visible=False)
        for position, pipe in enumerate(known):
            values = [_percent(groups[group], pipe) for group in shown]
            active = [_percent(groups[group], f"{pipe}_active") or 0.0 for group in shown]
            _draw_pipe(axes, pipe, position - (len(known) - 1) / 2, 0.8 / len(known), values, active)
        axes.set_ylim(0, 1.15 * max(5.0, axes.dataLim.y1))
        legend(canvas, axes)

    caption = "Share of the peak rate while kernels of this kind run. Pale: cycles in which the pipe was active."
    caption += f" Not in this file: {', '.join(missing)}." if missing else ""
    size = (max(5.2, 1.6 + 1.0 * len(shown)), 3.7)
    return Figure(name=name, title="Core utilization", caption=caption, draw=draw, size=size)


def _draw_pipe(axes: "Axes", pipe: str, position: float, thickness: float, values: Sequence[float | None],
               active: Sequence[float]) -> None:  # fmt: skip
    places = [index + position * thickness for index in range(len(values))]
    look: dict[str, Any] = {"thickness": 0.9 * thickness, "across": False}
    bars(axes, places, active, f"{FOUR[pipe]}, active", _PIPES[pipe], alpha=0.28, legend=False, **look)
    bars(axes, places, [value or 0.0 for value in values], FOUR[pipe], _PIPES[pipe], **look)
    for place, value, behind in zip(places, values, active, strict=True):
        if value is not None:
            text = f"{value:.0f}" if value >= 9.5 or value == 0 else f"{value:.1f}"
            words(axes, (place, max(value, behind)), text, (0, 2), ha="center", va="bottom", fontsize=7.5)


def _percent(use: CoreUse, pipe: str) -> float | None:
    pipes = use.pipes.get(pipe)
    return None if pipes is None else pipes.percent


def roofline_figure(lines: Roofline, name: str = "roofline") -> Figure:
    """Return every kernel by arithmetic intensity and rate, with the ceilings: a hierarchical roofline.

    Colors are kinds of work, areas times. The circle of a kernel is at its operations per byte of DRAM; of the 12
    longest a square and a triangle are at those per byte of L2 and L1/TEX. Each level with a known peak has a slope.
    """
    table = lines.kernels.head(_MOST_KERNELS)
    columns = [column for column, _ in _PLACES.values()]
    placed = table[table[columns].gt(0).any(axis=1) & (table["achieved_flops"] > 0)]
    rows: list[Row] = [{str(key): value for key, value in row.items()} for row in placed.to_dict("records")]
    drawn = {str(row["flop_type"]) for row in rows} | {DRAM}
    drawn |= {kind for kind in LEVEL_KINDS.values() if any(row[f"{kind}_bytes"] > 0 for row in rows)}
    peaks = {kind: one.rate for kind, one in lines.ceilings.items()
             if kind in drawn or not (rows or is_bandwidth(kind))}  # fmt: skip
    several = any(row[column] > 0 for row in rows for column in columns[:-1])

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots()
        axes.set(xlabel="arithmetic intensity (FLOP per byte)", ylabel="rate")
        logarithmic(axes, "x")
        logarithmic(axes, "y", wording.flops)
        _draw_kernels(axes, rows)
        legend(canvas, axes, loc="outside right upper", title="kind of work", ncols=1)
        _draw_ceilings(canvas, axes, rows, peaks)

    parts = ["Memory limits kernels near a slope, cores those near the roof; latency those far below both."]
    parts += [_SHAPES] if several else []
    if left := len(lines.kernels) - len(rows):
        share = float(lines.kernels["time_share"].sum()) - sum(float(row["time_share"]) for row in rows)
        of_time = f" ({100 * share:.0f} % of the time)" if math.isfinite(share) else ""
        parts.append(f"{left} of {len(lines.kernels)} kernels{of_time} have no counted operations and no place.")
    parts += ["The memory peak is unknown."] if DRAM not in lines.ceilings else []
    parts += ["The compute peak is unknown."] if all(map(is_bandwidth, lines.ceilings)) else []
    return Figure(name=name, title="Roofline", caption=" ".join(parts), draw=draw, size=(8.2, 4.6))


def _draw_ceilings(canvas: "Canvas", axes: "Axes", rows: Sequence[Row], peaks: Mapping[str, float]) -> None:
    """Draw the slopes of the levels, each type's peak from where no level is its ceiling, and labels where they fit."""
    roofs = sorted((rate, kind) for kind, rate in peaks.items() if not is_bandwidth(kind))
    slopes = {level: peaks[kind] for level, kind in LEVEL_KINDS.items() if kind in peaks}
    xs = [float(row[column]) for row in rows for column, _ in _PLACES.values() if row[column] > 0]
    xs += [roof / slope for roof, _ in roofs for slope in slopes.values()] or [0.1, 1000.0]
    ys = [float(row["achieved_flops"]) for row in rows] + [roof for roof, _ in roofs] or [1e9, 1e13]
    left, right = (10 ** (turn(math.log10(end)) + s) for turn, end, s in
                   ((math.floor, min(xs), -0.3), (math.ceil, max(xs), 0.3)))  # fmt: skip
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


def _draw_kernels(axes: "Axes", rows: Sequence[Row]) -> None:
    times: dict[str, float] = {}
    for row in rows:
        times[str(row["family"])] = times.get(str(row["family"]), 0.0) + _time(row)
    longest = max(map(_time, rows), default=0.0) or 1.0
    for family in sorted(times, key=lambda name: -times[name]):
        colour = _FAMILIES.get(family, "pale")
        for level, (column, marker) in _PLACES.items():
            dram = level == DRAM_LEVEL
            members = [row for row in (rows if dram else rows[:_MOST_LEVELS])
                       if row["family"] == family and row[column] > 0]  # fmt: skip
            x, y = [row[column] for row in members], [row["achieved_flops"] for row in members]
            areas = [max(_SMALLEST, _LARGEST * _time(row) / longest) if dram else 25.0 for row in members]
            titles = [f"{short_label(str(row['name']))}, {level}{LINE}{value_text(axes.xaxis, row[column])}{LINE}"
                      f"{value_text(axes.yaxis, row['achieved_flops'])}" for row in members]  # fmt: skip
            axes.scatter(
                x, y, areas, COLOURS[colour][0], marker=marker, alpha=0.75, linewidths=0, zorder=3, urls=titles,
                gid=f"series:{short_label(family)}",
            )  # fmt: skip
        axes.plot([], [], "o", color=COLOURS[colour][0], label=short_label(family), markersize=6.5)


def _time(row: Row) -> float:
    value = float(row["time_ms"])
    return value if math.isfinite(value) else 0.0
