"""Pictures of a run: PNG files drawn with matplotlib, in one style."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import wording
from analysis.diagnose.answer import Point
from analysis.load import LoadedTrial
from analysis.render.drawing import (
    BLUE,
    BROWN,
    FAINT,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    PINK,
    PURPLE,
    SKY,
    STYLE,
    VERMILION,
    Picture,
    canvas,
    interval_bars,
    save,
    short_label,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]

# An implementation has the same colour in every picture.
_NAMED = {"bertbench": BLUE, "hf": VERMILION, "hf-compiled": ORANGE, "hf-trainer": PINK, "torch-encoder": GREEN}
_OTHERS = (SKY, PURPLE, GREY, BROWN)
_PHASE_COLOURS = {
    "data_wait_ms": ("data wait", PALE),
    "forward_ms": ("forward", SKY),
    "backward_ms": ("backward", BLUE),
    "communication_ms": ("exposed communication", VERMILION),
    "optimizer_ms": ("optimizer", GREEN),
    "rest_ms": ("rest", "#E3E6EA"),
}
_DASHES = ("-", "--", ":", "-.")
_MARKERS = ("o", "s", "^", "D")
_HIGHEST_BAR = 1.6
_BARS = "Bars: 95 % interval, an arrow where it reaches further."
_MOST_PANELS = 6
_MOST_TRIALS = 12


def draw_all(
    folder: Path, trials: Sequence[LoadedTrial], points: Sequence[Point], scaling: Sequence[Row]
) -> list[Picture]:
    """Write every picture that the run has data for. Raises StorageError."""
    if not points:
        return []
    import matplotlib

    pictures = []
    with matplotlib.rc_context(STYLE):
        colours = colours_of([str(trial.row["implementation"]) for trial in trials])
        pictures.append(_throughput(folder, points, colours))
        pictures.append(_latency(folder, points, colours))
        if scaling:
            pictures.append(_scaling(folder, scaling, colours))
        pictures.append(_phases(folder, points))
        pictures.append(_step_times(folder, points, colours))
    return pictures


def colours_of(implementations: Sequence[str]) -> dict[str, str]:
    """Return a colour per implementation: fixed for known ones, by order of the alphabet for others."""
    others = sorted(set(implementations) - set(_NAMED))
    return {**_NAMED, **{name: _OTHERS[index % len(_OTHERS)] for index, name in enumerate(others)}}


def _panels(points: Sequence[Point]) -> list[tuple[str, list[Point]]]:
    """One panel per model and accumulation; the fullest ones where there are too many."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        row = point.row
        accumulation = "" if row["grad_accum_steps"] == 1 else f", accumulation {row['grad_accum_steps']}"
        task = "" if row["task"] == "pretrain" else f"{row['task']} "
        title = f"{task}{row['preset']} · {row['precision']} · seq {row['seq_len']}{accumulation}"
        groups.setdefault(title, []).append(point)
    return sorted(groups.items(), key=lambda item: -len(item[1]))[:_MOST_PANELS]


def _against_batch(
    path: Path,
    points: Sequence[Point],
    colours: Mapping[str, str],
    label: str,
    value: Callable[[Point], tuple[float, float, float]],
) -> bool:
    """Draw one panel per model; return whether there is only one."""
    panels = _panels(points)
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = canvas(5.2 if columns == 1 else 10.6, 3.7 * rows, rows, columns)
    for axis, (title, members) in zip(axes, panels, strict=False):
        _batch_panel(axis, members, colours, value)
        axis.set_title(short_label(title))
        axis.set_xlabel("micro batch size (sequences per device and step)")
        axis.set_ylabel(label)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    entries: dict[str, Any] = {}
    for axis in axes[: len(panels)]:
        entries |= {text: handle for handle, text in zip(*axis.get_legend_handles_labels(), strict=True)}
    most = 2 if columns == 1 else 5
    figure.legend(
        entries.values(), entries.keys(), loc="outside upper left", ncols=min(most, len(entries)), fontsize=8.5
    )
    save(figure, path)
    return len(panels) == 1


def _batch_panel(
    axis: "Axes",
    members: Sequence[Point],
    colours: Mapping[str, str],
    value: Callable[[Point], tuple[float, float, float]],
) -> None:
    lines: dict[tuple[str, int, str, str], list[Point]] = {}
    several = len({wording.data(point.row) for point in members}) > 1
    competing = wording.strategies_compete([point.row for point in members])
    top = _HIGHEST_BAR * max(value(point)[0] for point in members)
    for point in members:
        row = point.row
        strategy = str(row["strategy"]) if competing else ""
        data = wording.data(row) if several else ""
        lines.setdefault((str(row["implementation"]), int(row["world_size"]), strategy, data), []).append(point)
    styles = sorted({(world, strategy, data) for _, world, strategy, data in lines})
    for (name, world, strategy, data), line in sorted(lines.items()):
        line = sorted(line, key=lambda point: int(point.row["micro_batch_size"]))
        batches = [int(point.row["micro_batch_size"]) for point in line]
        middle, low, high = zip(*(value(point) for point in line), strict=True)
        style = styles.index((world, strategy, data))
        added = f", {data}" if data else ""
        interval_bars(axis, batches, middle, list(zip(low, high, strict=True)), top, colours[name])
        axis.plot(
            batches,
            middle,
            color=colours[name],
            linestyle=_DASHES[style % len(_DASHES)],
            marker=_MARKERS[style % len(_MARKERS)],
            markersize=5,
            markerfacecolor=colours[name] if style == 0 else "white",
            linewidth=1.8,
            label=short_label(f"{name}{f' {strategy}' if strategy else ''}, {world} {line[0].row['device']}{added}"),
        )
    ticks = sorted({int(point.row["micro_batch_size"]) for point in members})
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.minorticks_off()
    axis.set_ylim(bottom=0)
    axis.grid(axis="x", visible=False)


def _throughput(folder: Path, points: Sequence[Point], colours: Mapping[str, str]) -> Picture:
    path = folder / "throughput.png"
    half = _against_batch(
        path, points, colours, "samples per second", lambda p: (p.samples_per_second, *p.rate_interval)
    )
    caption = f"Sequences trained per second over all devices of a trial. {_BARS} Higher is better."
    return Picture(path, "Throughput against batch size", caption, half)


def _latency(folder: Path, points: Sequence[Point], colours: Mapping[str, str]) -> Picture:
    path = folder / "latency.png"
    half = _against_batch(
        path, points, colours, "step time (ms)", lambda p: (p.step_ms.value, p.step_ms.low, p.step_ms.high)
    )
    caption = f"Median time of one optimizer step of the slowest rank. {_BARS} Lower is better."
    return Picture(path, "Step time against batch size", caption, half)


def _scaling(folder: Path, scaling: Sequence[Row], colours: Mapping[str, str]) -> Picture:
    kinds = [kind for kind in ("weak", "strong") if any(row["scaling"] == kind for row in scaling)]
    figure, axes = canvas(10.6 if len(kinds) > 1 else 5.2, 3.3, 1, len(kinds), sharey=True)
    for axis, kind in zip(axes, kinds, strict=True):
        lines: dict[tuple[Any, ...], list[Row]] = {}
        for row in scaling:
            if row["scaling"] == kind:
                batch = row["micro_batch_size"] if kind == "weak" else row["global_batch_size"]
                names = ("implementation", "strategy", "preset", "precision", "seq_len")
                lines.setdefault((*(row[n] for n in names), batch), []).append(row)
        biggest = {str(key[0]): max(k[-1] for k in lines if k[0] == key[0]) for key in lines}
        for key, line in lines.items():
            strong = key[-1] == biggest[str(key[0])]
            axis.plot(
                [row["world_size"] for row in line],
                [100 * row["efficiency"] for row in line],
                color=colours[str(key[0])],
                marker="o",
                markersize=5,
                linewidth=1.8,
                alpha=1.0 if strong else 0.35,
                label=short_label(f"{key[0]}, batch {key[-1]}") if strong else None,
            )
            if strong:
                _efficiency_bars(axis, line, 100 * max(map(_highest, scaling)), colours[str(key[0])])
        sizes = sorted({row["world_size"] for row in scaling if row["scaling"] == kind})
        axis.set_xscale("log", base=2)
        axis.set_xticks(sizes, [str(value) for value in sizes])
        axis.minorticks_off()
        axis.axhline(100, color="#9AA5B1", linewidth=1)
        axis.set_ylim(0, max(110.0, 105 * max(map(_highest, scaling))))
        held = "batch per device kept" if kind == "weak" else "global batch kept"
        axis.set_title(f"{kind} scaling ({held})")
        axis.set_xlabel("devices")
        axis.legend(loc="best", fontsize=8.5)
    axes[0].set_ylabel("efficiency (%)")
    path = folder / "scaling.png"
    save(figure, path)
    shared = any(row["basis"] == "same total cores" for row in scaling)
    basis = "CPU ranks share the same cores, so 100 % means no loss from splitting them. " if shared else ""
    marks = f"{_BARS} Full lines: the largest batch; faint: smaller."
    caption = f"Throughput relative to the smallest device count. {basis}{marks}"
    return Picture(path, "Scaling efficiency", caption)


def _highest(row: Row) -> float:
    """Upper end of an efficiency to show; a wild interval must not press the others flat."""
    value = float(row["efficiency"])
    return max(value, min(float(row["efficiency_high"] or 0.0), _HIGHEST_BAR * value))


def _efficiency_bars(axis: "Axes", line: Sequence[Row], top: float, colour: str) -> None:
    known = [row for row in line if row["efficiency_low"] is not None]
    middle = [100 * row["efficiency"] for row in known]
    ends = [(100 * row["efficiency_low"], 100 * row["efficiency_high"]) for row in known]
    interval_bars(axis, [row["world_size"] for row in known], middle, ends, top, colour)


def _phases(folder: Path, points: Sequence[Point]) -> Picture:
    shown = _representative(points)
    figure, (axis,) = canvas(10.6, 0.9 + 0.3 * len(shown))
    labels = [short_label(_name(point, points)) for point in shown]
    left = [0.0] * len(shown)
    for column, (label, colour) in _PHASE_COLOURS.items():
        values = [_phase_share(point.row, column) for point in shown]
        if max(values) > 0.0005:
            axis.barh(range(len(shown)), values, left=left, color=colour, label=label, height=0.68)
            for index, value in enumerate(values):
                if value >= 6:
                    ink = "white" if column in ("backward_ms", "communication_ms", "optimizer_ms") else INK
                    axis.text(
                        left[index] + value / 2, index, f"{value:.0f}", ha="center", va="center", color=ink, fontsize=8
                    )
        left = [a + b for a, b in zip(left, values, strict=True)]
    axis.set_yticks(range(len(shown)), labels)
    axis.invert_yaxis()
    axis.set_xlim(0, 100)
    axis.set_xlabel("share of a step (%)")
    axis.grid(axis="y", visible=False)
    figure.legend(loc="outside upper left", ncols=6, fontsize=8.5)
    path = folder / "phases.png"
    save(figure, path)
    caption = (
        "Medians over the window, of the slowest rank in each step. "
        "Exposed communication is what the backward pass could not hide."
    )
    return Picture(path, "Where a step's time goes", caption)


def _phase_share(row: Row, column: str) -> float:
    total = sum(float(row.get(name) or 0.0) for name in _PHASE_COLOURS if name != "rest_ms")
    step = max(float(row["step_time_ms"]), total)
    value = step - total if column == "rest_ms" else float(row.get(column) or 0.0)
    return 100 * value / step


def _representative(points: Sequence[Point]) -> list[Point]:
    """All configurations, or the ones of the largest batches where there are many."""
    shown = list(points)
    while len(shown) > _MOST_TRIALS:
        smallest = min(shown, key=lambda p: int(p.row["micro_batch_size"]))
        shown.remove(smallest)
    return shown


def _name(point: Point, among: Sequence[Point]) -> str:
    """Name a configuration by what differs."""
    row = point.row
    parts = [str(row["implementation"])]
    if len({wording.model(p.row) for p in among}) > 1:
        parts.append(wording.model(row))
    if wording.strategies_compete([p.row for p in among]):
        parts.append(str(row["strategy"]))
    if len({wording.data(p.row) for p in among}) > 1:
        parts.append(wording.data(row))
    parts += [f"batch {wording.batch(row)}", wording.devices(row)]
    return ", ".join(parts)


def _step_times(folder: Path, points: Sequence[Point], colours: Mapping[str, str]) -> Picture:
    shown = _representative(points)
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)
    figure, axes = canvas(10.6, 0.4 + 1.75 * rows, rows, columns)
    for axis, point in zip(axes, shown, strict=False):
        trial = point.trials[len(point.trials) // 2]
        numbers = [int(step["step"]) for step in trial.steps]
        times = [float(step["step_time_ms"]) for step in trial.steps]
        colour = colours[str(point.row["implementation"])]
        start, stop = int(point.row["window_start"]), int(point.row["window_stop"])
        if numbers[0] < start:
            axis.axvspan(numbers[0] - 0.5, start - 0.5, color="#F3D9B1", alpha=0.6, linewidth=0)
        if numbers[-1] >= stop:
            axis.axvspan(stop - 0.5, numbers[-1] + 0.5, color=FAINT, alpha=0.8, linewidth=0)
        axis.plot(numbers, times, color=colour, linewidth=0.9, marker="o", markersize=2.2)
        axis.axhline(float(point.row["step_time_ms"]), color=INK, linewidth=0.8, linestyle=":")
        top = max(1.6 * float(point.row["step_time_ms"]), 1.1 * float(point.row["step_time_ms_p95"]))
        axis.set_ylim(0, top)
        _mark_cut(axis, numbers, times, top, colour)
        axis.set_title(short_label(_name(point, points)), fontsize=8.5, fontweight="normal")
        axis.tick_params(labelsize=8)
        axis.locator_params(axis="x", nbins=5, integer=True)
    for axis in axes[len(shown) :]:
        axis.set_visible(False)
    figure.supxlabel("step", fontsize=9)
    figure.supylabel("step time (ms)", fontsize=9)
    path = folder / "step_times.png"
    save(figure, path)
    left_out = (
        f" The {len(shown)} largest batches of {len(points)} configurations are shown."
        if len(shown) < len(points)
        else ""
    )
    caption = (
        "Every step of one round. Shaded: warm-up, left out of every number. Dotted: the median. "
        f"Triangles: steps beyond the axis.{left_out}"
    )
    return Picture(path, "Step times", caption)


def _mark_cut(axis: "Axes", numbers: Sequence[int], times: Sequence[float], top: float, colour: str) -> None:
    beyond = [number for number, time in zip(numbers, times, strict=True) if time > top and math.isfinite(time)]
    axis.plot(beyond, [top * 0.96] * len(beyond), linestyle="none", marker="^", color=colour, markersize=4.5)
