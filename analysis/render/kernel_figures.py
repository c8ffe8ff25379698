"""Figures of kernel counters: core utilization by kind of work, and the roofline."""

import math
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from analysis import wording
from analysis.counters import KernelCounters
from analysis.metrics.kernels.core_utilization import FOUR, core_use_by_family
from analysis.metrics.kernels.ncu_metrics import DRAM, DRAM_LEVEL, L1, L2, LEVEL_KINDS
from analysis.metrics.kernels.roofline import Roofline, is_bandwidth, roofline
from analysis.render.figure import COLOURS, LINE, Figure, bars, legend, logarithmic, short_label, value_text, words
from analysis.render.trace_figures import Figures

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

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


def kernel_figures(counters: KernelCounters, ending: str = "", measured: Mapping[str, float] | None = None) -> Figures:
    """Return every figure for which the counters have data, by the name of its finding."""
    groups, lines = core_use_by_family(counters), roofline(counters, measured)
    figures: Figures = {}
    if groups.filter(like="_percent").notna().any(axis=None):
        figures[f"core_utilization_by_family{ending}"] = [core_utilization_figure(groups, f"cores{ending}")]
    if lines.kernels["achieved_flops"].notna().any():
        figures[f"roofline{ending}"] = [roofline_figure(lines, f"roofline{ending}")]
    return figures


def core_utilization_figure(groups: "pd.DataFrame", name: str = "cores") -> Figure:
    """Return a group of four bars per kind of work, of what `core_use_by_family` returned.

    A pale bar behind FMA and tensor cores is the share of cycles in which the pipe worked at all. A pipe that is not in
    the file is named in the caption; a bar of 0 has its number.
    """
    known = [pipe for pipe in FOUR if groups[f"{pipe}_percent"].notna().any()]
    missing = [FOUR[pipe] for pipe in FOUR if pipe not in known]

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots()
        axes.set(xlabel="kind of work", ylabel="share of the peak rate (%)", xlim=(-0.6, max(len(groups) - 0.4, 0.6)))
        axes.set_xticks(range(len(groups)), ["\n".join(textwrap.wrap(short_label(name), 13)) for name in groups.index])
        axes.grid(axis="x", visible=False)
        thickness = 0.8 / max(1, len(known))
        look: dict[str, Any] = {"thickness": 0.9 * thickness, "across": False}
        for position, pipe in enumerate(known):
            places = [index + (position - (len(known) - 1) / 2) * thickness for index in range(len(groups))]
            values = groups[f"{pipe}_percent"]
            active = groups.get(f"{pipe}_active_percent", 0 * values).fillna(0.0)
            bars(
                axes, places, active.to_numpy(), f"{FOUR[pipe]}, active", _PIPES[pipe], alpha=0.28, legend=False, **look
            )
            bars(axes, places, values.fillna(0.0).to_numpy(), FOUR[pipe], _PIPES[pipe], **look)
            for place, value, behind in zip(places, values, active, strict=True):
                if value >= 0:
                    text = f"{value:.0f}" if value >= 9.5 or value == 0 else f"{value:.1f}"
                    words(axes, (place, max(value, behind)), text, (0, 2), ha="center", va="bottom", fontsize=7.5)
        axes.set_ylim(0, 1.15 * max(5.0, axes.dataLim.y1))
        legend(canvas, axes)

    caption = "Share of the peak rate while kernels of this kind run. Pale: cycles in which the pipe was active."
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
