"""Figures of trainings: loss, learning rate, evaluations and throughput of one, and comparisons of several."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, get_args

import numpy as np
import numpy.typing as npt

from analysis import wording
from analysis.load import LoadedTrial
from analysis.metrics.comparison.trainings import TrainingComparison, VariantCurve
from analysis.render.figure import (
    CYCLE,
    Axis,
    Bars,
    Dash,
    Figure,
    Line,
    Panel,
    Rule,
    Series,
    Text,
    categories,
    clock_unit,
    short_label,
)
from common.scores import Score, in_words, loss_unit, score, scores_in

Row = Mapping[str, Any]
Array = npt.NDArray[np.float64]

_HELD_OUT = ("vermilion", "orange", "blue", "green")
# The bold line of the loss is a running median over this share of the steps.
_SMOOTHED_SHARE = 0.02


def loss_figure(curve: Sequence[Row], evaluations: Sequence[Row], resumes: Sequence[int], sum_of: str) -> Figure:
    """Return the training loss of every step, its running median, and the held-out losses.

    Args:
        curve: rows of the run's curve, one per step, over all attempts.
        evaluations: rows of the evaluations, with `applied_steps` and their scores.
        resumes: steps after which an attempt resumed.
        sum_of: terms of the training loss; "" if unknown.
    """
    # Evaluations and resumes count applied steps; a step that overflows in fp16 is not applied.
    steps, losses = column(curve, "applied_steps"), column(curve, "loss")
    raw = f"training loss, every step{_in_brackets(sum_of)}"
    series: list[Series] = [
        Line(name=raw, x=steps, y=losses, colour="pale", width=0.8),
        Line(name="running median", x=steps, y=running_median(losses)),
    ]
    after = column(evaluations, "applied_steps")
    for (label, held_out), colour in zip(_held_out_losses(evaluations, sum_of).items(), _HELD_OUT, strict=False):
        series.append(Line(name=label, x=after, y=held_out, colour=colour, marker="circle", size=4, width=1))
    caption = "One curve over all attempts: steps repeated after a resume replace the earlier ones."
    return _by_step(
        "loss",
        "Loss",
        f"{caption} Dotted lines mark resumes." if resumes else caption,
        Axis(label="loss", unit=loss_unit(sum_of)),
        [*series, *_resumed(resumes)],
        inside=True,
    )


def learning_rate_figure(curve: Sequence[Row], resumes: Sequence[int]) -> Figure:
    """Return the learning rate of every step; arguments are those of `loss_figure`."""
    rate = Line(
        name="learning rate", x=column(curve, "applied_steps"), y=column(curve, "learning_rate"), colour="green"
    )
    return _by_step(
        "learning_rate",
        "Learning rate",
        "Learning rate of each step.",
        Axis(label="learning rate", low=0, form="number"),
        [rate, *_resumed(resumes)],
        size=(5.2, 3.2),
        legend="",
        half=True,
    )


def evaluation_figure(evaluations: Sequence[Row], best_step: float | None) -> Figure | None:
    """Return the scores in percent by evaluation; None with fewer than two evaluations."""
    found = {name: known for name, known in shown_scores(evaluations).items() if known.headline}
    shares = {name: known for name, known in found.items() if known.unit in ("fraction", "percent")}
    if len(evaluations) < 2 or not shares:
        return None
    steps = column(evaluations, "applied_steps")
    series: list[Series] = []
    lowest = 0.0
    for (name, known), colour in zip(shares.items(), _HELD_OUT, strict=False):
        values = (100 if known.unit == "fraction" else 1) * column(evaluations, name)
        lowest = min(lowest, float(np.nanmin(values, initial=0.0)))
        series.append(Line(name=known.label, x=steps, y=values, colour=colour, marker="circle", size=4))
    if "nsp_accuracy" in shares:
        chance = Rule(name="NSP by chance", axis="y", at=50, colour="ink", dash="dotted", width=0.8, legend=True)
        series.append(chance)
    if best_step is not None:
        best = Rule(name="best checkpoint", axis="x", at=best_step, colour="ink", dash="dashed", width=0.9, legend=True)
        series.append(best)
    return _by_step(
        "evaluation",
        "Held-out scores",
        "Scores on held-out data.",
        Axis(label="held-out scores", unit="%", low=1.05 * lowest, high=100),
        series,
        inside=True,
        size=(5.2, 3.2),
        half=True,
    )


def _by_step(
    name: str, title: str, caption: str, y: Axis, series: Sequence[Series], inside: bool = False, **options: Any
) -> Figure:
    """Return a figure of one panel over the steps; its legend may be inside the panel. Options are those of Figure."""
    panel = Panel(x=Axis(label="step", whole=True), y=y, series=series, legend="inside" if inside else "")
    return Figure(name=name, title=title, caption=caption, panels=[panel], **options)


def throughput_figure(attempts: Sequence[LoadedTrial], pauses: Sequence[Sequence[int]]) -> Figure | None:
    """Return samples per second of every step by time in the training loop; None if there is no step.

    Args:
        attempts: attempts of one run, in order.
        pauses: for each attempt, times at which evaluations and checkpoints ended, Unix time in ns.
    """
    curves: list[tuple[Array, Array]] = []
    breaks: list[npt.NDArray[np.int64]] = []
    before = 0.0
    for attempt, done in zip(attempts, pauses, strict=True):
        rows = [row for row in attempt.steps if row["end_ns"] is not None and row["samples"] is not None]
        if rows:
            own = np.array([(row["end_ns"] - rows[0]["start_ns"]) / 1e9 for row in rows], dtype=np.float64)
            rates = np.array([1000 * row["samples"] / row["step_time_ms"] for row in rows], dtype=np.float64)
            curves.append((before + own, rates))
            # An event written before a step ended before that step began.
            breaks.append(np.unique(np.searchsorted([row["start_ns"] for row in rows], done)))
            before += own[-1]
    if not curves:
        return None
    unit, seconds = clock_unit(before)
    # Few dots are large enough to see, many are small enough to stay apart.
    size = float(np.clip(60 / np.sqrt(sum(len(rates) for _, rates in curves)), 1.5, 6))
    series: list[Series] = []
    for number, (times, rates) in enumerate(curves):
        x, y = _broken(times / seconds, running_median(rates), breaks[number])
        dots = Line(
            name="every step", x=times / seconds, y=rates, colour="grey", opacity=0.6, dash="none", marker="dot",
            size=size,
        )  # fmt: skip
        series.append(dots)
        series.append(Line(name="running median", x=x, y=y, width=1.5))
        if number:
            end = curves[number - 1][0][-1] / seconds
            series.append(Rule(name="new attempt", axis="x", at=end, colour="grey", dash="dotted", width=0.9))
    return Figure(
        name="training_throughput",
        title="Throughput over time",
        caption="Every step and the running median. Gaps: evaluations and checkpoints. Dotted lines: new attempts.",
        panels=[
            Panel(
                x=Axis(label="time in the training loop, all attempts", unit=unit),
                y=Axis(label="samples/s", low=0),
                series=series,
            )
        ],
        size=(10.6, 3.2),
        legend="",
    )


def column(rows: Sequence[Row], name: str) -> Array:
    """Return one column of rows; unknown values are NaN."""
    return np.array([np.nan if row.get(name) is None else row[name] for row in rows], dtype=np.float64)


def shown_scores(rows: Sequence[Row]) -> dict[str, Score]:
    """Return the scores of evaluations, in the order of their first appearance."""
    return {name: score(name) for row in rows for name in scores_in(row)}


def running_median(values: Array) -> Array:
    """Return the median over a window around each step, shorter at the ends; robust to single outliers."""
    half = max(1, round(len(values) * _SMOOTHED_SHARE / 2))
    padded = np.pad(values, half, constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)
    known = ~np.isnan(windows).all(axis=1)
    result = np.full(len(values), np.nan)
    result[known] = np.nanmedian(windows[known], axis=1)
    return result


def _resumed(resumes: Sequence[int]) -> list[Rule]:
    steps = sorted(set(resumes))
    return [
        Rule(name="resumed", axis="x", at=step, colour="grey", dash="dotted", width=0.9, legend=True) for step in steps
    ]


def _in_brackets(words: str) -> str:
    return f" ({words})" if words else ""


def _held_out_losses(evaluations: Sequence[Row], sum_of: str) -> dict[str, Array]:
    """Return the held-out losses by label: first the one comparable with the training loss, then its parts."""
    losses = {name: known for name, known in shown_scores(evaluations).items() if known.unit == "nats"}
    found = {}
    if "+" in sum_of and len(losses) > 1:
        found[f"held-out loss{_in_brackets(sum_of)}"] = sum(
            (column(evaluations, name) for name in losses), start=np.zeros(len(evaluations))
        )
    found |= {f"held-out {known.label}": column(evaluations, name) for name, known in losses.items() if known.headline}
    return found


def _broken(times: Array, values: Array, breaks: npt.NDArray[np.int64]) -> tuple[Array, Array]:
    inner = breaks[(breaks > 0) & (breaks < len(times))]
    return np.insert(times, inner, np.nan), np.insert(values, inner, np.nan)


_DASHES: tuple[Dash, ...] = get_args(Dash)[:4]
# The first line is wide, so that lines on top of it can be seen.
_BROAD, _WIDTH, _EVEN_WIDTH = 3.6, 1.7, 2.0
_FEWEST_SMOOTHED = 100
_MOST_SCORES = 2
# With more curves, labels are shorter and include the times.
_MOST_IN_WORDS = 4


class Look(TypedDict):
    """Color and dash pattern of a line."""

    colour: str
    dash: Dash


def line_look(number: int) -> Look:
    """Return the look of a line; the first 32 differ, as each cycle of colors uses the next dash pattern."""
    again, place = divmod(number, len(CYCLE))
    return {"colour": CYCLE[place], "dash": _DASHES[(place + again) % len(_DASHES)]}


def comparison_figure(comparison: TrainingComparison, title: str = "", note: str = "") -> Figure | None:
    """Return progress by time, and loss and learning rate by progress; None if no variant made a step.

    Args:
        comparison: the trainings to draw.
        title: name of the training.
        note: text below the panels, such as the machine.
    """
    if not comparison.curves:
        return None
    names = [_label(curve, comparison) for curve in comparison.curves]
    return Figure(
        name="comparison",
        title="Comparison of trainings",
        panels=[
            _progress(comparison, names, short_label(title) or "Progress by time"),
            _losses(comparison, names),
            _rates(comparison, names),
        ],
        columns=3,
        widths=(10, 10, 6),
        size=(12.2, 4.6),
        note=note,
        legend_columns=1 if len(names) <= _MOST_IN_WORDS else 2,
    )


def variant_label(strategy: str, devices: int, device: str | None) -> str:
    """Return a strategy on its devices in words: "ddp on 2 GPUs", "single on 1 CPU process"."""
    kind = {"cuda": "GPU"}.get(device or "", "CPU process")
    return f"{strategy} on {devices} {kind}{('es' if kind.endswith('s') else 's') if devices > 1 else ''}"


def scores_text(curve: VariantCurve) -> str:
    """Return the main scores of the last evaluation as text, losses only if there is nothing else.

    The text is empty if nothing was evaluated.
    """
    known = [name for name in curve.scores if score(name).headline]
    names = [name for name in known if score(name).unit != "nats"] or known
    names.sort(key=lambda name: name != "f1")
    return ", ".join(in_words(name, curve.scores[name]) for name in names[:_MOST_SCORES])


def _label(curve: VariantCurve, comparison: TrainingComparison) -> str:
    row = curve.row
    rows = [other.row for other in comparison.curves]
    differ = {name: len({other[name] for other in rows}) > 1 for name in ("implementation", "precision")}
    words = row.get("name") or variant_label(row["strategy"], row["devices"], row["device"])
    words = ", ".join([*([row["implementation"]] if differ["implementation"] else []), words])
    words += f", {row['precision']}" if differ["precision"] else ""
    scores = scores_text(curve)
    speed = "" if row["samples_per_second"] is None else f", {wording.number(row['samples_per_second'])} samples/s"
    if len(comparison.curves) > _MOST_IN_WORDS:  # the table has the scores
        end = _last_second(curve)
        return f"{words}{speed}" if end is None else f"{words}{speed}, {wording.number(end)} s"
    return f"{words}: {scores}{speed}" if scores else f"{words}{speed}"


def _last_second(curve: VariantCurve) -> float | None:
    """Return when the last step ended; None if unknown."""
    return float(np.nanmax(curve.seconds)) if np.isfinite(curve.seconds).any() else None


def _percent_of(comparison: TrainingComparison) -> str:
    if comparison.epochs is None:
        return "percent of the run"
    if abs(comparison.epochs - 1) < 0.05:
        return "percent of the epoch"
    return f"percent of {comparison.epochs:.3g} epochs" if comparison.epochs > 1 else "percent of the run"


def _progress(comparison: TrainingComparison, names: Sequence[str], title: str) -> Panel:
    ends = [_last_second(curve) for curve in comparison.curves]
    longest = max((end for end in ends if end is not None), default=0.0)
    unit, seconds = clock_unit(longest)
    series: list[Series] = []
    for number, (curve, name, end) in enumerate(zip(comparison.curves, names, ends, strict=True)):
        if end is None:
            continue
        known = np.isfinite(curve.seconds)
        times, percents = curve.seconds[known] / seconds, curve.percent[known]
        look = line_look(number)
        series.append(Line(name=name, x=[0, *times], y=[0, *percents], width=_EVEN_WIDTH, **look))
        series.append(
            Line(name=name, x=times[-1:], y=percents[-1:], colour=look["colour"], dash="none", marker="circle",
                 beyond=True, legend=False)
        )  # fmt: skip
        if len(names) <= _MOST_IN_WORDS:
            text, shift = f"{wording.number(times[-1])} {unit}", (7.0, 5.0 if number % 2 == 0 else -8.0)
            series.append(Text(name="end", x=float(times[-1]), y=float(percents[-1]), text=text, shift=shift))
    return Panel(
        title=title,
        x=Axis(label="time in the loop, with evaluations and checkpoints", unit=unit, low=0,
               high=1.16 * longest / seconds or 1),
        y=Axis(label=_percent_of(comparison), low=0, high=108, ticks=[(tick, f"{tick}") for tick in range(0, 101, 20)]),
        series=series,
    )  # fmt: skip


def _losses(comparison: TrainingComparison, names: Sequence[str]) -> Panel:
    smoothed = max(len(curve.loss) for curve in comparison.curves) >= _FEWEST_SMOOTHED
    series: list[Series] = []
    for number, (curve, name) in enumerate(zip(comparison.curves, names, strict=True)):
        look = line_look(number)
        if smoothed:
            raw = Line(
                name=f"{name}, every step", x=curve.percent, y=curve.loss, colour=look["colour"], width=0.6,
                opacity=0.25, legend=False,
            )  # fmt: skip
            series.append(raw)
        loss = running_median(curve.loss) if smoothed else curve.loss
        series.append(Line(name=name, x=curve.percent, y=loss, width=_width(number), **look))
    return Panel(
        title="Training loss",
        x=Axis(label=_percent_of(comparison), low=0, high=100),
        y=Axis(label="training loss", unit="nats, every step and running median" if smoothed else "nats, every step"),
        series=series,
    )


def _rates(comparison: TrainingComparison, names: Sequence[str]) -> Panel:
    lines = [
        Line(name=name, x=curve.percent, y=curve.learning_rate, width=_width(number), **line_look(number))
        for number, (curve, name) in enumerate(zip(comparison.curves, names, strict=True))
    ]
    return Panel(
        title="Learning rate",
        x=Axis(label=_percent_of(comparison), low=0, high=100),
        y=Axis(low=0, form="number"),
        series=lines,
    )


def _width(number: int) -> float:
    return _BROAD if number == 0 else _WIDTH


@dataclass(frozen=True, slots=True)
class HeadCurve:
    """Held-out loss and accuracy of a head after each epoch."""

    name: str
    epochs: Sequence[float]
    """Epochs trained, ascending."""
    losses: Sequence[float | None]
    """Log loss in nats; None if it was not finite."""
    accuracies: Sequence[float | None]
    """Accuracy at each evaluation, a fraction."""
    seconds: float | None
    """Time of the whole training; None if unknown."""


def heads_figure(curves: Sequence[HeadCurve], majority: float | None, title: str = "") -> Figure:
    """Return log loss and accuracy by epoch, and the training time of each head.

    Args:
        curves: at least one curve, each with at least one epoch.
        majority: accuracy of always giving the most frequent answer, a fraction; None if unknown.
        title: name of the training.
    """
    colours = [CYCLE[number % len(CYCLE)] for number in range(len(curves))]
    losses: list[Series] = []
    accuracies: list[Series] = []
    for curve, colour in zip(curves, colours, strict=True):
        name, percents = short_label(curve.name), [None if a is None else 100 * a for a in curve.accuracies]
        for series, values in ((losses, curve.losses), (accuracies, percents)):
            series.append(
                Line(name=name, x=curve.epochs, y=values, colour=colour, marker="circle", size=3.5, width=1.6)
            )
    if majority is not None:
        accuracies.append(
            Rule(name="most frequent answer", axis="y", at=100 * majority, colour="grey", dash="dashed", width=1.2,
                 legend=True)
        )  # fmt: skip
    seconds = [curve.seconds or 0.0 for curve in curves]
    bars = Bars(
        name="time",
        at=range(len(curves)),
        end=seconds,
        across=True,
        colours=colours,
        labels=["not measured" if curve.seconds is None else f"{curve.seconds:,.0f} s" for curve in curves],
        place="end",
        legend=False,
    )
    epoch = Axis(label="epoch", whole=True)
    return Figure(
        name="heads",
        title="Comparison of heads",
        heading=short_label(title),
        panels=[
            Panel(title="validation log loss, nats", x=epoch, series=losses),
            Panel(title="validation accuracy, %", x=epoch, series=accuracies),
            Panel(
                title="time, s",
                x=Axis(low=0, high=1.4 * max(seconds) or 1.0),
                y=categories([short_label(curve.name) for curve in curves]),
                series=[bars],
            ),
        ],
        columns=3,
        widths=(1.2, 1.2, 0.9),
        size=(10.4, 3.7),
        legend="below",
        legend_columns=len(curves) + 1,
    )


def speedruns_figure(runs: Mapping[str, Row], title: str = "") -> Figure:
    """Return the held-out loss of every seed by training time, with the target.

    Args:
        runs: speedrun.json by the name of each speedrun; all have the target of the first.
        title: name of the training.
    """
    series: list[Series] = []
    for (name, found), colour in zip(runs.items(), CYCLE, strict=False):
        for row in found["rows"]:
            readings = row.get("readings") or []
            times, losses = column(readings, "step_seconds"), column(readings, "mlm_loss")
            series.append(
                Line(name=short_label(name), x=times, y=losses, colour=colour, marker="circle", size=3, width=1.2)
            )
    target = float(next(iter(runs.values()))["target"]["value"])
    series.append(Rule(name="target", axis="y", at=target, colour="grey", dash="dashed", width=1.2, legend=True))
    return Figure(
        name="speedrun",
        title="Time to quality",
        heading=short_label(title),
        caption="Held-out MLM loss of each seed by the time of its steps; evaluations and start-up take no part in it.",
        panels=[
            Panel(
                x=Axis(label="training time, s", low=0), y=Axis(label="held-out MLM loss", unit="nats"), series=series
            )
        ],
        size=(7.2, 4.0),
        legend="below",
        legend_columns=4,
    )
