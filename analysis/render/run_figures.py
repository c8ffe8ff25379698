"""Figures of runs: speed by batch size, scaling, where a step's time goes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis import wording
from analysis.diagnose.answer import Point
from analysis.render.figure import (
    COLOURS,
    CYCLE,
    Figure,
    categories,
    curve,
    legend,
    number_ticks,
    rule,
    short_label,
    stacked,
)
from analysis.wording import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

# An implementation has the same color in every figure.
_NAMED = {
    "bertbench": "blue",
    "hf": "vermilion",
    "hf-compiled": "orange",
    "hf-trainer": "pink",
    "hf-unpadded": "sky",
}
_OTHERS = ("green", "purple", "grey", "brown")
_PHASES = {
    "data_wait_ms": ("data wait", "pale"),
    "forward_ms": ("forward", "sky"),
    "backward_ms": ("backward", "blue"),
    "communication_ms": ("exposed communication", "vermilion"),
    "optimizer_ms": ("optimizer", "green"),
    "rest_ms": ("rest", "idle"),
}
_STYLES = (("solid", "o"), ("dashed", "s"), ("dotted", "^"), ("dashdot", "D"))
# An interval of two rounds may reach many times as high as anything measured, and would press all points flat.
_HIGHEST_BAR = 1.6
_BARS = "Bars: 95 % interval, cut at the edge."
_BATCH = "micro batch size (sequences per device)"
_MOST_PANELS, _MOST_TICKS = 6, 8
_MOST_CONFIGURATIONS = 12
_LEAST_LABELED = 6
"""Smallest part of a step, in percent, that has its number written on it."""


def run_figures(points: Sequence[Point], scaling: Sequence[Row]) -> list[Figure]:
    """Return every figure for which a run has data."""
    if not points:
        return []
    # Known implementations have fixed colors, others theirs in alphabetical order.
    rows = [*(point.row for point in points), *scaling]
    others = sorted(set(map(wording.implementation, rows)) - set(_NAMED))
    colours = {**_NAMED, **{name: _OTHERS[number % len(_OTHERS)] for number, name in enumerate(others)}}
    efficiency = [_scaling_figure(scaling, colours)] if scaling else []
    return [_throughput_figure(points, colours), *efficiency, _phases_figure(points)]


def _throughput_figure(points: Sequence[Point], colours: Mapping[str, str]) -> Figure:
    """Return one panel per model and accumulation; if there are too many, the ones with the most points."""
    groups: dict[str, list[Point]] = {}
    for point in sorted(points, key=lambda point: int(point.row["micro_batch_size"])):
        row = point.row
        accumulation = "" if row["grad_accum_steps"] == 1 else f", accumulation {row['grad_accum_steps']}"
        task = "" if row["task"] == "pretrain" else f"{wording.task(row)} "
        groups.setdefault(f"{task}{wording.model(row)}{accumulation}", []).append(point)
    shown = sorted(groups.items(), key=lambda item: -len(item[1]))[:_MOST_PANELS]
    columns, rows = min(3, len(shown)), -(-len(shown) // 3)

    def draw(canvas: "Canvas") -> None:
        for place, (model, members) in enumerate(shown, start=1):
            axes = canvas.add_subplot(rows, columns, place)
            sizes = sorted({int(point.row["micro_batch_size"]) for point in members})
            axes.set(title=short_label(model), xlabel=_BATCH, ylabel="samples per second")
            top = _top([point.rate.value for point in members], [point.rate.high for point in members])
            axes.set_ylim(0, top)
            number_ticks(axes, sizes[:: -(-len(sizes) // _MOST_TICKS)])
            _lines_by_batch(axes, members, colours)
        legend(canvas, *canvas.axes)

    caption = f"Sequences trained per second over all devices of a trial. {_BARS} Higher is better."
    return Figure(
        name="throughput", title="Throughput by batch size", caption=caption, draw=draw, half=len(shown) == 1,
        size=(5.2 if columns == 1 else 10.6, 3.7 * rows),
    )  # fmt: skip


def _top(middles: Iterable[float | None], ends: Iterable[float | None]) -> float:
    """Return the end of an axis for values and the ends of their intervals."""
    highest = max(value for value in middles if value is not None)
    known = [end for end in ends if end is not None and end < math.inf]
    return min(_HIGHEST_BAR * highest, 1.05 * max([highest, *known]))


def _lines_by_batch(axes: "Axes", members: Sequence[Point], colours: Mapping[str, str]) -> None:
    lines: dict[tuple[str, int, str, str], list[Point]] = {}
    several = len({wording.data(point.row) for point in members}) > 1
    competing = wording.names_strategies([point.row for point in members])
    for point in members:
        row = point.row
        strategy, data = wording.strategy(row) if competing else "", wording.data(row) if several else ""
        lines.setdefault((wording.implementation(row), int(row["world_size"]), strategy, data), []).append(point)
    styles = sorted({key[1:] for key in lines})
    for number, (key, line) in enumerate(sorted(lines.items())):
        name, world, strategy, data = key
        middle, low, high = zip(*((point.rate.value, point.rate.low, point.rate.high) for point in line), strict=True)
        dash, marker = _STYLES[styles.index(key[1:]) % len(_STYLES)]
        label = ", ".join(filter(None, [f"{name} {strategy}".strip(), f"{world} {line[0].row['device']}", data]))
        curve(
            axes, [point.row["micro_batch_size"] for point in line], middle, short_label(label), colours[name],
            low=low, high=high, shift=3 * (number - (len(lines) - 1) / 2), linestyle=dash, marker=marker, markersize=5,
            markerfacecolor=COLOURS["paper" if key[1:] != styles[0] else colours[name]][0],
        )  # fmt: skip


def _scaling_figure(scaling: Sequence[Row], colours: Mapping[str, str]) -> Figure:
    top = 100 * _top(*([row[name] for row in scaling] for name in ("efficiency", "efficiency_high")))
    sizes = {"weak": "micro_batch_size", "strong": "global_batch_size"}
    lines: dict[tuple[Any, ...], list[Row]] = {}
    for row in scaling:
        name, kind, size = wording.implementation(row), row["scaling"], row[sizes[row["scaling"]]]
        same = (one for one in scaling if (wording.implementation(one), one["scaling"]) == (name, kind))
        if size == max(one[sizes[kind]] for one in same):
            lines.setdefault((name, kind, size, wording.strategy(row), wording.model(row)), []).append(row)

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots()
        axes.set(xlabel="devices", ylabel="efficiency (%)", ylim=(0, max(110.0, top)))
        number_ticks(axes, sorted({row["world_size"] for row in scaling}))
        rule(axes, "y", 100, "100 %")
        for (name, kind, size, *_), line in lines.items():
            middle, low, high = (
                [math.nan if row[field] is None else 100 * row[field] for row in line]
                for field in ("efficiency", "efficiency_low", "efficiency_high")
            )
            label = short_label(f"{name}, {kind}, {'batch' if kind == 'weak' else 'global batch'} {size}")
            look: dict[str, Any] = {
                "linestyle": "solid" if kind == "weak" else "dashed",
                "marker": "o",
                "markersize": 5,
            }
            curve(axes, [row["world_size"] for row in line], middle, label, colours[name], low=low, high=high, **look)
        legend(canvas, axes)

    shared = any(row["basis"] == "same total cores" for row in scaling)
    basis = "CPU ranks share the same cores, so 100 % means no loss from splitting them. " if shared else ""
    caption = (
        "Throughput relative to the smallest device count. Weak: same batch per device; strong: same global batch. "
        f"{basis}{_BARS} The largest batch."
    )
    return Figure(name="scaling", title="Scaling efficiency", caption=caption, draw=draw, size=(8.2, 3.7))


def utilization_figure(utilization: Mapping[str, Mapping[int, float]]) -> Figure:
    """Return the utilization of the devices by micro batch size, a line for each kind of it."""

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots()
        axes.set(xlabel=_BATCH, ylabel="utilization (%)", ylim=(0, 100))
        number_ticks(axes, sorted({batch for by_batch in utilization.values() for batch in by_batch}))
        for (name, by_batch), colour in zip(utilization.items(), CYCLE, strict=False):
            curve(axes, by_batch, [100 * value for value in by_batch.values()], name, colour, marker="o", markersize=5)
        legend(canvas, axes)

    caption = "Share of the time in which kernels ran, or of the peak rate of each kind of core; mean over ranks."
    title = "Utilization by batch size"
    return Figure(name="utilization", title=title, caption=caption, draw=draw, size=(5.2, 3.7), half=True)


def _phases_figure(points: Sequence[Point]) -> Figure:
    largest = sorted(points, key=lambda point: -int(point.row["micro_batch_size"]))[:_MOST_CONFIGURATIONS]
    shown = [point for point in points if point in largest]
    shares: dict[str, list[float]] = {name: [] for name in _PHASES}
    for point in shown:
        times = {name: float(point.row.get(name) or 0.0) for name in _PHASES if name != "rest_ms"}
        step = max(float(point.row["step_time_ms"]), sum(times.values()))
        times["rest_ms"] = step - sum(times.values())
        for name, time in times.items():
            shares[name].append(100 * time / step)

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots()
        axes.set(xlabel="share of a step (%)", xlim=(0, 100))
        categories(axes, [_name(point, points) for point in shown])
        parts = {label: (colour, shares[name]) for name, (label, colour) in _PHASES.items()}
        stacked(axes, parts, _LEAST_LABELED)
        legend(canvas, axes)

    caption = "Medians over the window, of the slowest rank in each step. Exposed: not hidden by the backward pass."
    caption += f" The largest batches of {len(points)} configurations." if len(shown) < len(points) else ""
    size = (10.6, 1.1 + 0.3 * len(shown))
    return Figure(name="phases", title="Step time by phase", caption=caption, draw=draw, size=size)


def _name(point: Point, among: Sequence[Point]) -> str:
    row, rows = point.row, [other.row for other in among]
    parts = [wording.implementation(row)]
    parts += [wording.model(row)] if len(set(map(wording.model, rows))) > 1 else []
    parts += [wording.strategy(row)] if wording.names_strategies(rows) else []
    parts += [wording.data(row)] if len(set(map(wording.data, rows))) > 1 else []
    return ", ".join([*parts, f"batch {wording.batch(row)}", wording.devices(row)])
