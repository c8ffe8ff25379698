"""Figures of runs: speed by batch size, scaling, where a step's time goes, the waterfall of a step."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis import wording
from analysis.diagnose.answer import Point
from analysis.load import LoadedTrial
from analysis.metrics.speed_of_light import ARITHMETIC, FLOOR, LOSS, NOT_EXPLAINED
from analysis.render.figure import (
    COLOURS,
    CYCLE,
    Figure,
    band,
    bars,
    categories,
    curve,
    grid,
    legend,
    number_ticks,
    rule,
    short_label,
    stacked,
    whole_ticks,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

Row = Mapping[str, Any]
Interval = tuple[float, float, float]

# An implementation has the same color in every figure.
_NAMED = {
    "bertbench": "blue",
    "hf": "vermilion",
    "hf-compiled": "orange",
    "hf-trainer": "pink",
    "hf-unpadded": "sky",
    "torch-encoder": "green",
}
_OTHERS = ("purple", "grey", "brown")
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
_MOST_PANELS = 6
_MOST_TRIALS = 12
_LEAST_LABELED = 6
"""Smallest part of a step, in percent, that has its number written on it."""


def run_figures(trials: Sequence[LoadedTrial], points: Sequence[Point], scaling: Sequence[Row]) -> list[Figure]:
    """Return every figure for which a run has data."""
    if not points:
        return []
    # Known implementations have fixed colors, others theirs in alphabetical order.
    others = sorted({wording.implementation(trial.row) for trial in trials} - set(_NAMED))
    colours = {**_NAMED, **{name: _OTHERS[number % len(_OTHERS)] for number, name in enumerate(others)}}
    throughput = _against_batch(
        points, colours, "samples per second", lambda point: (point.rate.value, point.rate.low, point.rate.high),
        name="throughput", title="Throughput by batch size",
        caption=f"Sequences trained per second over all devices of a trial. {_BARS} Higher is better.",
    )  # fmt: skip
    latency = _against_batch(
        points, colours, "step time (ms)", lambda point: (point.step_ms.value, point.step_ms.low, point.step_ms.high),
        name="latency", title="Step time by batch size",
        caption=f"Median time of one optimizer step of the slowest rank. {_BARS} Lower is better.",
    )  # fmt: skip
    efficiency = [_scaling_figure(scaling, colours)] if scaling else []
    # Of many configurations those with the largest batches.
    largest = sorted(points, key=lambda point: -int(point.row["micro_batch_size"]))[:_MOST_TRIALS]
    shown = [(_name(point, points), point) for point in points if point in largest]
    left_out = f" The largest batches of {len(points)} configurations." if len(largest) < len(points) else ""
    return [throughput, latency, *efficiency, _phases_figure(shown), _step_times_figure(shown, colours, left_out)]


def _name(point: Point, among: Sequence[Point]) -> str:
    row, rows = point.row, [other.row for other in among]
    parts = [wording.implementation(row)]
    parts += [wording.model(row)] if len(set(map(wording.model, rows))) > 1 else []
    parts += [wording.strategy(row)] if wording.strategies_compete(rows) else []
    parts += [wording.data(row)] if len(set(map(wording.data, rows))) > 1 else []
    return ", ".join([*parts, f"batch {wording.batch(row)}", wording.devices(row)])


def _against_batch(points: Sequence[Point], colours: Mapping[str, str], label: str, value: Callable[[Point], Interval],
                   *, name: str, title: str, caption: str) -> Figure:  # fmt: skip
    """Return one panel per model and accumulation; if there are too many, the ones with the most points."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        row = point.row
        accumulation = "" if row["grad_accum_steps"] == 1 else f", accumulation {row['grad_accum_steps']}"
        task = "" if row["task"] == "pretrain" else f"{wording.task(row)} "
        groups.setdefault(f"{task}{wording.model(row)}{accumulation}", []).append(point)
    shown = sorted(groups.items(), key=lambda item: -len(item[1]))[:_MOST_PANELS]
    columns = min(3, len(shown))

    def draw(canvas: "Canvas") -> None:
        panels = grid(canvas, len(shown), columns)
        for axes, (model, members) in zip(panels, shown, strict=True):
            sizes = sorted({int(point.row["micro_batch_size"]) for point in members})
            middle = max(value(point)[0] for point in members)
            highest = max(_capped(*value(point)[::2]) for point in members)
            axes.set(title=short_label(model), xlabel=_BATCH, ylabel=label)
            axes.set_ylim(0, min(_HIGHEST_BAR * middle, 1.05 * highest))
            number_ticks(axes, spread(sizes, 0.07 * columns))
            _lines_by_batch(axes, members, colours, value)
        legend(canvas, *panels)

    size = (5.2 if columns == 1 else 10.6, 3.7 * -(-len(shown) // columns))
    return Figure(name=name, title=title, caption=caption, draw=draw, size=size, half=len(shown) == 1)


def spread(sizes: Sequence[int], room: float) -> list[int]:
    """Return the first of ascending sizes, the last, and those between with `room`, a share of a logarithmic axis."""
    apart = room * math.log2(sizes[-1] / sizes[0])
    ticks = [sizes[0]]
    for size in sizes[1:-1]:
        if math.log2(size / ticks[-1]) >= apart and math.log2(sizes[-1] / size) >= apart:
            ticks.append(size)
    return [*ticks, *sizes[1:][-1:]]


def _capped(middle: float, end: float) -> float:
    return max(middle, min(end, _HIGHEST_BAR * middle)) if math.isfinite(end) else middle


def _lines_by_batch(
    axes: "Axes", members: Sequence[Point], colours: Mapping[str, str], value: Callable[[Point], Interval]
) -> None:
    lines: dict[tuple[str, int, str, str], list[Point]] = {}
    several = len({wording.data(point.row) for point in members}) > 1
    competing = wording.strategies_compete([point.row for point in members])
    for point in sorted(members, key=lambda point: int(point.row["micro_batch_size"])):
        row = point.row
        strategy, data = wording.strategy(row) if competing else "", wording.data(row) if several else ""
        lines.setdefault((wording.implementation(row), int(row["world_size"]), strategy, data), []).append(point)
    styles = sorted({key[1:] for key in lines})
    for number, (key, line) in enumerate(sorted(lines.items())):
        name, world, strategy, data = key
        middle, low, high = zip(*(value(point) for point in line), strict=True)
        dash, marker = _STYLES[styles.index(key[1:]) % len(_STYLES)]
        label = ", ".join(filter(None, [f"{name} {strategy}".strip(), f"{world} {line[0].row['device']}", data]))
        curve(
            axes, [point.row["micro_batch_size"] for point in line], middle, short_label(label), colours[name],
            low=low, high=high, shift=3 * (number - (len(lines) - 1) / 2), linestyle=dash, marker=marker, markersize=5,
            markerfacecolor=COLOURS["paper" if key[1:] != styles[0] else colours[name]][0],
        )  # fmt: skip


def _scaling_figure(scaling: Sequence[Row], colours: Mapping[str, str]) -> Figure:
    kinds = [kind for kind in ("weak", "strong") if any(row["scaling"] == kind for row in scaling)]
    top = 100 * max(_capped(row["efficiency"], row["efficiency_high"] or 0.0) for row in scaling)

    def draw(canvas: "Canvas") -> None:
        for axes, kind in zip(canvas.subplots(1, len(kinds), squeeze=False).flat, kinds, strict=True):
            size = "micro_batch_size" if kind == "weak" else "global_batch_size"
            rows = [row for row in scaling if row["scaling"] == kind]
            axes.set(title=f"{kind} scaling ({'batch per device' if kind == 'weak' else 'global batch'} kept)")
            axes.set(xlabel="devices", ylabel="efficiency (%)", ylim=(0, max(110.0, 1.05 * top)))
            number_ticks(axes, sorted({row["world_size"] for row in rows}))
            rule(axes, "y", 100, "100 %")
            largest: dict[str, int] = {}
            for row in rows:
                name = wording.implementation(row)
                largest[name] = max(row[size], largest.get(name, 0))
            lines: dict[tuple[Any, ...], list[Row]] = {}
            for row in rows:
                name = wording.implementation(row)
                if row[size] == largest[name]:
                    model = (row["preset"], row["precision"], row["seq_len"])
                    lines.setdefault((name, wording.strategy(row), *model, row[size]), []).append(row)
            for (name, *_, batch), line in lines.items():
                middle, low, high = (
                    [math.nan if row[field] is None else 100 * row[field] for row in line]
                    for field in ("efficiency", "efficiency_low", "efficiency_high")
                )
                label, devices = short_label(f"{name}, batch {batch}"), [row["world_size"] for row in line]
                curve(axes, devices, middle, label, colours[name], low=low, high=high, marker="o", markersize=5)
            legend(axes, axes, loc="best")

    shared = any(row["basis"] == "same total cores" for row in scaling)
    basis = "CPU ranks share the same cores, so 100 % means no loss from splitting them. " if shared else ""
    caption = f"Throughput relative to the smallest device count. {basis}{_BARS} The largest batch."
    size = (10.6 if len(kinds) > 1 else 5.2, 3.3)
    return Figure(name="scaling", title="Scaling efficiency", caption=caption, draw=draw, size=size)


def utilization_figure(utilization: Mapping[str, Mapping[int, float]]) -> Figure:
    """Return the utilization of the devices by micro batch size, a line for each kind of it."""

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots()
        axes.set(xlabel=_BATCH, ylabel="utilization (%)", ylim=(0, 100))
        number_ticks(axes, spread(sorted({batch for by_batch in utilization.values() for batch in by_batch}), 0.07))
        for (name, by_batch), colour in zip(utilization.items(), CYCLE, strict=False):
            curve(axes, by_batch, [100 * value for value in by_batch.values()], name, colour, marker="o", markersize=5)
        legend(canvas, axes)

    caption = "Share of the time in which kernels ran, or of the peak rate of each kind of core; mean over ranks."
    title = "Utilization by batch size"
    return Figure(name="utilization", title=title, caption=caption, draw=draw, size=(5.2, 3.7), half=True)


def _phases_figure(shown: Sequence[tuple[str, Point]]) -> Figure:
    shares: dict[str, list[float]] = {name: [] for name in _PHASES}
    for _, point in shown:
        times = {name: float(point.row.get(name) or 0.0) for name in _PHASES if name != "rest_ms"}
        step = max(float(point.row["step_time_ms"]), sum(times.values()))
        times["rest_ms"] = step - sum(times.values())
        for name, time in times.items():
            shares[name].append(100 * time / step)

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots()
        axes.set(xlabel="share of a step (%)", xlim=(0, 100))
        categories(axes, [name for name, _ in shown])
        parts = {label: (colour, shares[name]) for name, (label, colour) in _PHASES.items()}
        stacked(axes, parts, _LEAST_LABELED)
        legend(canvas, axes)

    caption = "Medians over the window, of the slowest rank in each step. Exposed: not hidden by the backward pass."
    size = (10.6, 1.1 + 0.3 * len(shown))
    return Figure(name="phases", title="Step time by phase", caption=caption, draw=draw, size=size)


def _step_times_figure(shown: Sequence[tuple[str, Point]], colours: Mapping[str, str], left_out: str) -> Figure:
    columns = min(3, len(shown))

    def draw(canvas: "Canvas") -> None:
        panels = grid(canvas, len(shown), columns)
        for place, (axes, (name, point)) in enumerate(zip(panels, shown, strict=True)):
            row, records = point.row, point.trials[len(point.trials) // 2].steps
            colour = colours[wording.implementation(row)]
            steps = [int(step["step"]) for step in records]
            times = [float(step["step_time_ms"]) for step in records]
            start, stop, median = int(row["window_start"]), int(row["window_stop"]), float(row["step_time_ms"])
            top = max(1.6 * median, 1.1 * float(row["step_time_ms_p95"]))
            axes.set_title(short_label(name), fontsize=8.5)
            axes.set(xlabel="step", ylabel="" if place % columns else "step time (ms)", ylim=(0, top))
            whole_ticks(axes)
            if steps[0] < start:
                band(axes, "x", steps[0] - 0.5, start - 0.5, "warm-up", "warmup")
            if steps[-1] >= stop:
                band(axes, "x", stop - 0.5, steps[-1] + 0.5, "after the window", "grid")
            curve(axes, steps, times, "step", colour, linewidth=0.9, titled=30)
            rule(axes, "y", median, "median", "ink", linewidth=0.8)
            beyond = [step for step, time in zip(steps, times, strict=True) if top < time < math.inf]
            axes.plot(beyond, [0.96 * top] * len(beyond), "^", color=COLOURS[colour][0], markersize=4.5)

    caption = f"Every step of one round. Shaded: warm-up. Dotted: median. Triangles: steps beyond the axis.{left_out}"
    size = (10.6, 0.4 + 1.75 * -(-len(shown) // columns))
    return Figure(name="step_times", title="Step times", caption=caption, draw=draw, size=size)


def waterfall_figure(row: Row, name: str = "waterfall") -> Figure:
    """Return the waterfall of a trial of kind components, from the floor of a step to the measured step."""
    parts: Sequence[Row] = row["waterfall"]
    ends: list[tuple[float, float]] = []  # each starts where the last one ends, the total at 0
    for part in parts:
        begin = ends[-1][1] if ends and part["kind"] in (FLOOR, LOSS) else 0.0
        ends.append((begin, begin + part["ms"]))
    floor = max(end for part, (_, end) in zip(parts, ends, strict=True) if part["kind"] == FLOOR)

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots()
        axes.set(title=f"{wording.implementation(row)} {wording.model(row)} {wording.place(row)}", xlabel="time (ms)")
        axes.set_xlim(min(0.0, *map(min, ends)), 1.2 * max(map(max, ends)))
        categories(axes, [str(part["name"]) for part in parts])
        rule(axes, "x", floor, "floor", "blue")
        colours, texts = [], []
        for place, (part, (_, end)) in enumerate(zip(parts, ends, strict=True)):
            lost, gained = part["kind"] == LOSS, part["ms"] < 0
            named = {ARITHMETIC: "blue", NOT_EXPLAINED: "pale"}.get(part["name"])
            kinds = {FLOOR: "sky", LOSS: "green" if gained else "vermilion"}
            colours.append(named or kinds.get(part["kind"], "grey"))
            sign = "-" if gained else "+" if lost else ""
            texts.append(f"{sign}{wording.number(abs(part['ms']))} ms, {wording.percent(part['share'])}")
            if place < len(parts) - 1:
                axes.plot([end, end], [place, place + 1], color=COLOURS["note"][0], linewidth=0.7)
        bars(
            axes, range(len(parts)), [max(pair) for pair in ends], "step", colours,
            begin=[min(pair) for pair in ends], thickness=0.62, labels=texts,
        )  # fmt: skip

    caption = (
        "Blue: the floor, FLOPs at the measured peak and memory traffic at the measured bandwidth. Each bar starts "
        "where the one above ends. Orange: parts above their floor; green: below; gray: not explained."
    )
    title, size = "From the floor of a step to the measured step", (9.6, 1.1 + 0.34 * len(parts))
    return Figure(name=name, title=title, caption=caption, draw=draw, size=size)
