"""Figures of runs: speed by batch size, scaling, where a step's time goes, the waterfall of a step."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from analysis import wording
from analysis.diagnose.answer import Point
from analysis.load import LoadedTrial
from analysis.metrics.speed_of_light import ARITHMETIC, FLOOR, LOSS, NOT_EXPLAINED
from analysis.render.figure import (
    CYCLE,
    Axis,
    Band,
    Bars,
    Dash,
    Figure,
    Line,
    Marker,
    Panel,
    Rule,
    categories,
    short_label,
    stacked,
)

Row = Mapping[str, Any]

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
    "rest_ms": ("rest", "faint"),
}
_DASHES: tuple[Dash, ...] = get_args(Dash)[:4]
_MARKERS: tuple[Marker, ...] = get_args(Marker)[1:5]
# An interval of two rounds may reach many times as high as anything measured, and would press all points flat.
_HIGHEST_BAR = 1.6
_BARS = "Bars: 95 % interval, an arrow where it reaches further."
_MOST_PANELS = 6
_TICK_ROOM = 0.07
"""Width of a tick's number, as a share of an axis in a figure of one panel."""
_MOST_TRIALS = 12
_LEAST_LABELLED = 6
"""Smallest part of a step, in percent, that is labeled with its number."""


def run_figures(trials: Sequence[LoadedTrial], points: Sequence[Point], scaling: Sequence[Row]) -> list[Figure]:
    """Return every figure for which a run has data."""
    if not points:
        return []
    colours = colours_of([str(trial.row["implementation"]) for trial in trials])
    throughput = _against_batch(
        points, colours, "samples per second", lambda point: (point.samples_per_second, *point.rate_interval),
        name="throughput", title="Throughput by batch size",
        caption=f"Sequences trained per second over all devices of a trial. {_BARS} Higher is better.",
    )  # fmt: skip
    latency = _against_batch(
        points, colours, "step time", lambda point: (point.step_ms.value, point.step_ms.low, point.step_ms.high),
        unit="ms", name="latency", title="Step time by batch size",
        caption=f"Median time of one optimizer step of the slowest rank. {_BARS} Lower is better.",
    )  # fmt: skip
    efficiency = [scaling_figure(scaling, colours)] if scaling else []
    return [throughput, latency, *efficiency, phases_figure(points), step_times_figure(points, colours)]


def colours_of(implementations: Sequence[str]) -> dict[str, str]:
    """Return a color per implementation: fixed for known ones, in alphabetical order for others."""
    others = sorted(set(implementations) - set(_NAMED))
    return {**_NAMED, **{name: _OTHERS[index % len(_OTHERS)] for index, name in enumerate(others)}}


def _against_batch(
    points: Sequence[Point],
    colours: Mapping[str, str],
    label: str,
    value: Callable[[Point], tuple[float, float, float]],
    *,
    unit: str = "",
    name: str,
    title: str,
    caption: str,
) -> Figure:
    """Return one panel per model and accumulation; if there are too many, the ones with the most points."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        row = point.row
        accumulation = "" if row["grad_accum_steps"] == 1 else f", accumulation {row['grad_accum_steps']}"
        task = "" if row["task"] == "pretrain" else f"{row['task']} "
        model = f"{task}{row['preset']} · {row['precision']} · seq {row['seq_len']}{accumulation}"
        groups.setdefault(model, []).append(point)
    shown = sorted(groups.items(), key=lambda item: -len(item[1]))[:_MOST_PANELS]
    columns = min(3, len(shown))
    panels = []
    for model, members in shown:
        ticks = _spread_ticks([int(point.row["micro_batch_size"]) for point in members], _TICK_ROOM * columns)
        middle = max(value(point)[0] for point in members)
        highest = max(_capped(value(point)[0], value(point)[2]) for point in members)
        panels.append(
            Panel(
                title=short_label(model),
                x=Axis(label="micro batch size (sequences per device)", scale="log2", ticks=ticks, grid=False),
                y=Axis(label=label, unit=unit, low=0, high=min(_HIGHEST_BAR * middle, 1.05 * highest)),
                series=_lines_by_batch(members, colours, value),
            )
        )
    return Figure(
        name=name,
        title=title,
        caption=caption,
        panels=panels,
        columns=columns,
        size=(5.2 if columns == 1 else 10.6, 3.7 * -(-len(panels) // columns)),
        legend_columns=2 if columns == 1 else 5,
        half=len(panels) == 1,
    )


def _spread_ticks(sizes: Sequence[int], room: float) -> list[tuple[float, str]]:
    """Return ticks of a logarithmic axis: the first size, the last, and those between that have room.

    Args:
        sizes: at least one.
        room: between two ticks, as a share of the axis.
    """
    known = sorted(set(sizes))
    apart = room * math.log2(known[-1] / known[0])
    kept = known[:1]
    for size in known[1:-1]:
        if math.log2(size / kept[-1]) >= apart and math.log2(known[-1] / size) >= apart:
            kept.append(size)
    kept += known[-1:] if len(known) > 1 else []
    return [(float(size), str(size)) for size in kept]


def _capped(middle: float, end: float) -> float:
    return max(middle, min(end, _HIGHEST_BAR * middle)) if math.isfinite(end) else middle


def _lines_by_batch(
    members: Sequence[Point], colours: Mapping[str, str], value: Callable[[Point], tuple[float, float, float]]
) -> list[Line]:
    lines: dict[tuple[str, int, str, str], list[Point]] = {}
    several = len({wording.data(point.row) for point in members}) > 1
    competing = wording.strategies_compete([point.row for point in members])
    for point in members:
        row = point.row
        strategy = str(row["strategy"]) if competing else ""
        data = wording.data(row) if several else ""
        lines.setdefault((str(row["implementation"]), int(row["world_size"]), strategy, data), []).append(point)
    styles = sorted({(world, strategy, data) for _, world, strategy, data in lines})
    found = []
    for (name, world, strategy, data), line in sorted(lines.items()):
        line = sorted(line, key=lambda point: int(point.row["micro_batch_size"]))
        middle, low, high = zip(*(value(point) for point in line), strict=True)
        style = styles.index((world, strategy, data))
        words = (
            f"{name}{f' {strategy}' if strategy else ''}, {world} {line[0].row['device']}{f', {data}' if data else ''}"
        )
        found.append(
            Line(
                name=short_label(words),
                x=[point.row["micro_batch_size"] for point in line],
                y=middle,
                low=low,
                high=high,
                colour=colours[name],
                dash=_DASHES[style % len(_DASHES)],
                marker=_MARKERS[style % len(_MARKERS)],
                hollow=style > 0,
            )
        )
    return found


def scaling_figure(scaling: Sequence[Row], colours: Mapping[str, str]) -> Figure:
    """Return the efficiency of weak and strong scaling from `measured_efficiency` by devices."""
    top = 100 * max(_capped(row["efficiency"], row["efficiency_high"] or 0.0) for row in scaling)
    panels = []
    for kind in (kind for kind in ("weak", "strong") if any(row["scaling"] == kind for row in scaling)):
        rows = [row for row in scaling if row["scaling"] == kind]
        sizes = sorted({row["world_size"] for row in rows})
        held = "batch per device kept" if kind == "weak" else "global batch kept"
        panels.append(
            Panel(
                title=f"{kind} scaling ({held})",
                x=Axis(label="devices", scale="log2", ticks=[(float(size), str(size)) for size in sizes]),
                y=Axis(label="efficiency", unit="%", low=0, high=max(110.0, 1.05 * top)),
                series=[Rule(name="100 %", axis="y", at=100), *_efficiency_lines(rows, kind, colours)],
                legend="inside",
            )
        )
    shared = any(row["basis"] == "same total cores" for row in scaling)
    basis = "CPU ranks share the same cores, so 100 % means no loss from splitting them. " if shared else ""
    return Figure(
        name="scaling",
        title="Scaling efficiency",
        caption=f"Throughput relative to the smallest device count. {basis}{_BARS} Full lines: "
        "the largest batch; faint: smaller.",
        panels=panels,
        columns=len(panels),
        size=(10.6 if len(panels) > 1 else 5.2, 3.3),
    )


def _efficiency_lines(rows: Sequence[Row], kind: str, colours: Mapping[str, str]) -> list[Line]:
    lines: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        batch = row["micro_batch_size"] if kind == "weak" else row["global_batch_size"]
        names = ("implementation", "strategy", "preset", "precision", "seq_len")
        lines.setdefault((*(row[name] for name in names), batch), []).append(row)
    biggest = {str(key[0]): max(other[-1] for other in lines if other[0] == key[0]) for key in lines}
    found = []
    for key, line in lines.items():
        strong = key[-1] == biggest[str(key[0])]
        ends = {
            side: [None if row[f"efficiency_{side}"] is None else 100 * row[f"efficiency_{side}"] for row in line]
            for side in ("low", "high")
        }
        found.append(
            Line(
                name=short_label(f"{key[0]}, batch {key[-1]}"),
                x=[row["world_size"] for row in line],
                y=[100 * row["efficiency"] for row in line],
                low=ends["low"] if strong else (),
                high=ends["high"] if strong else (),
                colour=colours[str(key[0])],
                marker="circle",
                opacity=1.0 if strong else 0.35,
                legend=strong,
            )
        )
    return found


def utilization_figure(utilization: Mapping[str, Mapping[int, float]]) -> Figure:
    """Return the utilization of the devices by micro batch size, a line for each kind of it."""
    sizes = sorted({batch for by_batch in utilization.values() for batch in by_batch})
    lines = [
        Line(name=name, colour=colour, x=[*by_batch], y=[100 * value for value in by_batch.values()], marker="circle")
        for (name, by_batch), colour in zip(utilization.items(), CYCLE, strict=False)
    ]
    ticks = _spread_ticks(sizes, _TICK_ROOM)
    panel = Panel(
        series=lines,
        x=Axis(label="micro batch size (sequences per device)", scale="log2", ticks=ticks, grid=False),
        y=Axis(label="utilization", unit="%", low=0, high=100),
    )
    return Figure(
        name="utilization",
        title="Utilization by batch size",
        caption="Share of the time in which kernels ran, or of the peak rate of each kind of core; mean over ranks.",
        panels=[panel],
        size=(5.2, 3.7),
        half=True,
    )


def phases_figure(points: Sequence[Point]) -> Figure:
    """Return the share of each phase in a step, for every configuration."""
    shown = _representative(points)
    series, left = [], [0.0] * len(shown)
    for column, (label, colour) in _PHASES.items():
        values = [_phase_share(point.row, column) for point in shown]
        ends = [begin + value for begin, value in zip(left, values, strict=True)]
        if max(values) > 0.0005:
            texts = [f"{value:.0f}" if value >= _LEAST_LABELLED else "" for value in values]
            series.append(stacked(label, colour, left, ends, texts))
        left = ends
    return Figure(
        name="phases",
        title="Step time by phase",
        caption="Medians over the window, of the slowest rank in each step. "
        "Exposed communication is what the backward pass could not hide.",
        panels=[
            Panel(
                series=series,
                x=Axis(label="share of a step", unit="%", low=0, high=100),
                y=categories([short_label(_name(point, points)) for point in shown]),
            )
        ],
        size=(10.6, 0.9 + 0.3 * len(shown)),
        legend_columns=6,
    )


def _phase_share(row: Row, column: str) -> float:
    total = sum(float(row.get(name) or 0.0) for name in _PHASES if name != "rest_ms")
    step = max(float(row["step_time_ms"]), total)
    value = step - total if column == "rest_ms" else float(row.get(column) or 0.0)
    return 100 * value / step


def _representative(points: Sequence[Point]) -> list[Point]:
    shown = list(points)
    while len(shown) > _MOST_TRIALS:
        shown.remove(min(shown, key=lambda point: int(point.row["micro_batch_size"])))
    return shown


def _name(point: Point, among: Sequence[Point]) -> str:
    """Return the name of a configuration: the settings in which it differs."""
    row = point.row
    parts = [str(row["implementation"])]
    if len({wording.model(other.row) for other in among}) > 1:
        parts.append(wording.model(row))
    if wording.strategies_compete([other.row for other in among]):
        parts.append(str(row["strategy"]))
    if len({wording.data(other.row) for other in among}) > 1:
        parts.append(wording.data(row))
    parts += [f"batch {wording.batch(row)}", wording.devices(row)]
    return ", ".join(parts)


def step_times_figure(points: Sequence[Point], colours: Mapping[str, str]) -> Figure:
    """Return the time of every step of one round of each configuration."""
    shown = _representative(points)
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)
    panels = [
        _step_panel(
            point, short_label(_name(point, points)), colours[str(point.row["implementation"])], number, columns
        )
        for number, point in enumerate(shown)
    ]
    left_out = (
        f" The {len(shown)} largest batches of {len(points)} configurations are shown."
        if len(shown) < len(points)
        else ""
    )
    return Figure(
        name="step_times",
        title="Step times",
        caption="Every step of one round. Shaded: warm-up, not measured. Dotted: median. "
        f"Triangles: steps beyond the axis.{left_out}",
        panels=panels,
        columns=columns,
        size=(10.6, 0.4 + 1.75 * rows),
        legend="",
    )


def _step_panel(point: Point, title: str, colour: str, number: int, columns: int) -> Panel:
    trial = point.trials[len(point.trials) // 2]
    steps = [int(step["step"]) for step in trial.steps]
    times = [float(step["step_time_ms"]) for step in trial.steps]
    start, stop = int(point.row["window_start"]), int(point.row["window_stop"])
    median = float(point.row["step_time_ms"])
    top = max(1.6 * median, 1.1 * float(point.row["step_time_ms_p95"]))
    beyond = [step for step, time in zip(steps, times, strict=True) if time > top and math.isfinite(time)]
    series: list[Line | Rule | Band] = []
    if steps[0] < start:
        series.append(
            Band(name="warm-up", axis="x", low=steps[0] - 0.5, high=start - 0.5, colour="warmup", opacity=0.6)
        )
    if steps[-1] >= stop:
        series.append(Band(name="after the window", axis="x", low=stop - 0.5, high=steps[-1] + 0.5, colour="faint"))
    series += [
        Line(name="step time", x=steps, y=times, colour=colour, width=0.9, marker="circle", size=2.2),
        Rule(name="median", axis="y", at=median, colour="ink", dash="dotted", width=0.8),
    ]
    if beyond:
        at_top = [0.96 * top] * len(beyond)
        series.append(Line(name="beyond", x=beyond, y=at_top, colour=colour, dash="none", marker="triangle", size=4.5))
    return Panel(
        title=title,
        x=Axis(label="step", whole=True),
        y=Axis(label="" if number % columns else "step time", unit="" if number % columns else "ms", low=0, high=top),
        series=series,
    )


def taken_apart(trials: Sequence[LoadedTrial]) -> list[LoadedTrial]:
    """Return the successful trials of kind components."""
    return [trial for trial in trials if trial.trial.kind == "components" and trial.row["status"] == "ok"]


def waterfall_figure(row: Row, name: str = "waterfall") -> Figure:
    """Return the waterfall of a trial of kind components, from the floor of a step to the measured step."""
    bars = row["waterfall"]
    ends = spans(bars)
    most = max(max(pair) for pair in ends)
    floor = max(end for bar, (_, end) in zip(bars, ends, strict=True) if bar["kind"] == FLOOR)
    links_x: list[float] = []
    links_y: list[float] = []
    for place, (bar, (_, end)) in enumerate(zip(bars[:-1], ends[:-1], strict=True)):
        if bar["kind"] != "total":
            links_x += [end, end, math.nan]
            links_y += [place, place + 1, math.nan]
    waterfall = Bars(
        name="step",
        at=range(len(bars)),
        begin=[min(pair) for pair in ends],
        end=[max(pair) for pair in ends],
        thickness=0.62,
        across=True,
        colours=[_waterfall_colour(bar) for bar in bars],
        labels=[_bar_text(bar) for bar in bars],
        place="end",
    )
    return Figure(
        name=name,
        title="From the floor of a step to the measured step",
        caption="Blue is the floor: the model's FLOPs at the measured peak, and the memory traffic at the measured "
        "bandwidth. Each bar starts where the one above ends. Orange: time of separately timed parts above "
        "their floor; green: below it. Gray: not explained by the parts.",
        panels=[
            Panel(
                title=f"{row['implementation']} {wording.model(row)} {wording.place(row)}",
                x=Axis(label="ms", low=min(0.0, *(min(pair) for pair in ends)), high=1.2 * most),
                y=categories([str(bar["name"]) for bar in bars]),
                series=[
                    Line(name="next", x=links_x, y=links_y, colour="note", width=0.7, legend=False),
                    Rule(name="floor", axis="x", at=floor, colour="blue", dash="dotted"),
                    waterfall,
                ],
            )
        ],
        size=(9.6, 1.1 + 0.34 * len(bars)),
        legend="",
    )


def spans(bars: Sequence[Row]) -> list[tuple[float, float]]:
    """Return start and end of each bar in ms: each starts where the last one ends, the total at 0."""
    found, reached = [], 0.0
    for bar in bars:
        begin = reached if bar["kind"] in (FLOOR, LOSS) else 0.0
        reached = begin + bar["ms"]
        found.append((begin, reached))
    return found


def _bar_text(bar: Row) -> str:
    sign = "+" if bar["kind"] == LOSS and bar["ms"] >= 0 else "-" if bar["ms"] < 0 else ""
    return f"{sign}{wording.number(abs(bar['ms']))} ms, {wording.percent(bar['share'])}"


def _waterfall_colour(bar: Row) -> str:
    if bar["kind"] == FLOOR:
        return "blue" if bar["name"] == ARITHMETIC else "sky"
    if bar["kind"] != LOSS:
        return "grey"
    if bar["name"] == NOT_EXPLAINED:
        return "pale"
    return "vermilion" if bar["ms"] >= 0 else "green"
