"""The part of a report about a training run: loss and learning rate over all attempts, evaluations, throughput."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from analysis import wording
from analysis.diagnose.answer import Answer, Figure
from analysis.load import LoadedTrial
from analysis.render import tables
from analysis.render.drawing import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    STYLE,
    VERMILION,
    Picture,
    canvas,
    clock_unit,
    save,
)
from common.errors import InputError
from common.scores import Score, in_words, loss_unit, score, scores_in
from records.training import TrainRun, read_events

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]
_COLOURS = (VERMILION, ORANGE, BLUE, GREEN)
Array = npt.NDArray[np.float64]

# The bold line of the loss is the median of this share of the steps around each.
_SMOOTHED_SHARE = 0.02
# The training loss in figures is the median of so many steps, because that of one is mostly chance.
_LAST_STEPS = 10
_BEST = ("checkpoint", "applied_steps", "score", "value")


@dataclass(frozen=True, slots=True)
class TrainingPart:
    """What a page shows of a training run."""

    answer: Answer
    pictures: tuple[Picture, ...]
    tables: tuple[tables.Table, ...]
    problems: tuple[str, ...]
    """Records that cannot be read, with the reason."""


@dataclass(frozen=True, slots=True)
class _Told:
    """What curve and events say."""

    curve: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    resumes: list[int]
    attempts: list[dict[str, Any]]
    problems: list[str]
    best: dict[str, Any]
    """Best checkpoint of the run: applied_steps, score, value, checkpoint; empty where there is none."""
    loss: str
    """What the training loss is made of; empty where that is not known."""
    pauses: list[list[int]] = field(default_factory=list)
    """Of each attempt: when evaluations and checkpoints were done, Unix time in ns."""


def training_part(run: TrainRun, trials: Sequence[LoadedTrial], folder: Path) -> TrainingPart | None:
    """Draw and tabulate a training run; None where no trial is of kind train.

    Pictures and CSV tables go to `folder`. Damaged records are named, the rest is shown. Raises StorageError.
    """
    attempts = sorted((trial for trial in trials if trial.trial.kind == "train"), key=lambda trial: trial.trial.round)
    if not attempts:
        return None
    told = _read(run, attempts)
    shown = [_attempts_table(told.attempts)]
    tables.write_csv(folder / "attempts.csv", told.attempts)
    if told.evaluations:
        shown.append(_evaluations_table(told.evaluations))
        tables.write_csv(folder / "evaluations.csv", told.evaluations)
    return TrainingPart(_answer(attempts, told), _draw(folder, attempts, told), tuple(shown), tuple(told.problems))


def _read(run: TrainRun, attempts: Sequence[LoadedTrial]) -> _Told:
    told = _Told([], [], [], [], [], {}, run.loss_label(attempts[-1].trial.task))
    try:
        told.curve.extend(run.read_curve())
    except InputError as error:
        told.problems.append(str(error))
    evaluations: dict[int, dict[str, Any]] = {}
    for attempt in attempts:
        try:
            events = read_events(attempt.directory)
        except InputError as error:
            told.problems.append(str(error))
            events = []
        resumed = [event["applied_steps"] for event in events if event["event"] == "resumed" and not event["new_phase"]]
        told.resumes.extend(resumed)
        # What is made again counts as it came out the second time.
        evaluations = {step: row for step, row in evaluations.items() if not resumed or step <= resumed[0]}
        evaluations |= {event["applied_steps"]: event for event in events if event["event"] == "evaluated"}
        saved = [event for event in events if event["event"] == "saved"]
        done = [event.get("time_ns") for event in events if event["event"] in ("evaluated", "saved")]
        told.pauses.append([when for when in done if isinstance(when, int)])
        if saved:
            told.best.clear()
            if saved[-1].get("best_checkpoint") is not None:
                told.best.update({name: saved[-1].get(f"best_{name}") for name in _BEST})
        told.attempts.append(
            {
                "attempt": attempt.trial.round + 1,
                "status": attempt.row["status"],
                "from_step": resumed[0] if resumed else 0,
                "steps": len(attempt.steps),
                "wall_seconds": attempt.row.get("wall_seconds"),
                "samples_per_second": attempt.row.get("samples_per_second"),
                "world_size": attempt.trial.world_size,
                "global_batch_size": attempt.trial.global_batch_size,
                "last_checkpoint": saved[-1]["path"] if saved else "",
                "reason": attempt.row.get("reason") or "",
            }
        )
    for step, row in sorted(evaluations.items()):
        is_best = step == told.best.get("applied_steps")
        told.evaluations.append({**_evaluation(row), "checkpoint": told.best["checkpoint"] if is_best else ""})
    return told


def _evaluation(event: Row) -> dict[str, Any]:
    left_out = ("event", "time_ns", "seconds", "best")
    return {name: value for name, value in event.items() if name not in left_out}


def _attempts_table(rows: Sequence[Row]) -> tables.Table:
    columns = [
        tables.measured("attempt", "attempt", wording.count),
        tables.measured("after step", "from_step", wording.count),
        tables.measured("steps made", "steps", wording.count),
        tables.measured("batch", "global_batch_size", wording.count),
        tables.recorded("world_size"),
        tables.recorded("samples_per_second"),
        tables.measured("seconds", "wall_seconds"),
        tables.plain("last checkpoint", "last_checkpoint"),
        tables.Column("status", lambda row: str(row["status"]), wording.status, False),
    ]
    return tables.build("attempts", columns, rows)


def _evaluations_table(rows: Sequence[Row]) -> tables.Table:
    columns = [
        tables.measured("after step", "applied_steps", wording.count),
        *(tables.measured(_heading(known), name, _form(known)) for name, known in _scores(rows).items()),
        tables.measured("samples", "samples", wording.count),
    ]
    if any(row["checkpoint"] for row in rows):
        columns.append(tables.plain("best checkpoint", "checkpoint"))
    return tables.build("evaluations", columns, rows)


def _scores(rows: Sequence[Row]) -> dict[str, Score]:
    """What the evaluations found, in the order in which they told it."""
    return {name: score(name) for row in rows for name in scores_in(row)}


def _heading(known: Score) -> str:
    """A label with its unit, where the numbers do not bring it along."""
    units = {"nats": " (nats)", "percent": " (%)"}
    return known.label + units.get(known.unit, "")


def _form(known: Score) -> Callable[[Any], str]:
    return wording.percent if known.unit == "fraction" else wording.fine


def _answer(attempts: Sequence[LoadedTrial], told: _Told) -> Answer:
    last = attempts[-1].trial
    total = int(dict(last.training).get("steps") or last.max_steps)
    made = int(told.curve[-1]["applied_steps"]) if told.curve else 0
    sizes = sorted({a.trial.global_batch_size for a in attempts if a.steps} or {last.global_batch_size})
    batch = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    headline = f"BERT-{last.preset} was trained for {made:,} of {total:,} steps of {batch} samples."
    figures: list[Figure] = []
    if told.curve:
        figures.append(_training_loss(_column(told.curve, "loss"), told.loss))
    if told.evaluations:
        found = told.evaluations[-1]
        after = f"after step {found['applied_steps']:,}"
        for name, known in _scores([found]).items():
            if known.headline:
                label, unit = ("held-out " + known.label, "nats, ") if known.unit == "nats" else (known.label, "")
                figures.append(Figure(label, _form(known)(found[name]), unit + after))
    rates = [row["samples_per_second"] for row in told.attempts if row["samples_per_second"]]
    if rates:
        figures.append(
            Figure("samples per second", wording.number(rates[-1]), "at the median step time of the last attempt")
        )
    count = len(attempts)
    again = len(told.resumes) or "none"
    sentences = [f"It took {count} attempts, {again} of which resumed from a checkpoint."] if count > 1 else []
    if told.best and told.best["value"] is not None:
        best = told.best
        reached = in_words(str(best["score"]), float(best["value"]))
        sentences.append(
            f"The best checkpoint is {best['checkpoint']}: {reached} after step {best['applied_steps']:,}."
        )
    ended = told.attempts[-1]
    if ended["status"] != "ok":
        sentences.insert(0, f"The last attempt ended as {ended['status']}: {ended['reason'] or 'it left no reason'}.")
    return Answer(headline, tuple(figures), tuple(sentences))


def _training_loss(losses: Array, sum_of: str) -> Figure:
    if not np.isfinite(losses[-1]):
        return Figure("training loss", "not finite", "in the last step")
    last = losses[-_LAST_STEPS:]
    return Figure(
        "training loss",
        wording.fine(np.nanmedian(last)),
        ", ".join(filter(None, [loss_unit(sum_of), sum_of, f"median of the last {len(last)} steps"])),
    )


def _draw(folder: Path, attempts: Sequence[LoadedTrial], told: _Told) -> tuple[Picture, ...]:
    import matplotlib

    drawn = []
    with matplotlib.rc_context(STYLE):
        if told.curve:
            drawn.append(_loss(folder / "loss.png", told, told.loss))
            drawn.append(_learning_rate(folder / "learning_rate.png", told))
        if len(told.evaluations) > 1 and _shares(told.evaluations):
            drawn.append(_accuracy(folder / "evaluation.png", told))
        if any(attempt.steps for attempt in attempts):
            drawn.append(_throughput(folder / "training_throughput.png", attempts, told))
    return tuple(drawn)


def _column(rows: Sequence[Row], name: str) -> Array:
    return np.array([np.nan if row.get(name) is None else row[name] for row in rows], dtype=np.float64)


def running_median(values: Array) -> Array:
    """Return the median over a window around each step, which a few odd steps do not move; cut off at the ends."""
    half = max(1, round(len(values) * _SMOOTHED_SHARE / 2))
    padded = np.pad(values, half, constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)
    known = ~np.isnan(windows).all(axis=1)
    result = np.full(len(values), np.nan)
    result[known] = np.nanmedian(windows[known], axis=1)
    return result


def _mark_resumes(axis: "Axes", told: _Told) -> None:
    for number, step in enumerate(sorted(set(told.resumes))):
        axis.axvline(step, color=GREY, linewidth=0.9, linestyle=":", label="resumed" if number == 0 else None)


def _count_steps(axis: "Axes") -> None:
    """There is nothing between two steps."""
    from matplotlib.ticker import MaxNLocator

    axis.set_xlabel("step")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _in_brackets(words: str) -> str:
    return f" ({words})" if words else ""


def _held_out_losses(evaluations: Sequence[Row], sum_of: str) -> dict[str, Array]:
    """The curves of the held-out losses by label: what the training loss is compared with first, then parts of it."""
    losses = {name: known for name, known in _scores(evaluations).items() if known.unit == "nats"}
    found = {}
    if "+" in sum_of and len(losses) > 1:
        found[f"held-out loss{_in_brackets(sum_of)}"] = sum(
            (_column(evaluations, name) for name in losses), start=np.zeros(len(evaluations))
        )
    found |= {f"held-out {known.label}": _column(evaluations, name) for name, known in losses.items() if known.headline}
    return found


def _loss(path: Path, told: _Told, sum_of: str) -> Picture:
    figure, (axis,) = canvas(10.6, 3.9)
    # Evaluations and resumes are counted in applied steps, which a step that overflowed in fp16 does not add to.
    steps, losses = _column(told.curve, "applied_steps"), _column(told.curve, "loss")
    axis.plot(steps, losses, color=PALE, linewidth=0.8, label=f"training loss, every step{_in_brackets(sum_of)}")
    axis.plot(steps, running_median(losses), color=BLUE, linewidth=1.8, label="its running median")
    for (label, held_out), colour in zip(_held_out_losses(told.evaluations, sum_of).items(), _COLOURS, strict=False):
        after = _column(told.evaluations, "applied_steps")
        axis.plot(after, held_out, color=colour, marker="o", markersize=4, linewidth=1, label=label)
    _mark_resumes(axis, told)
    _count_steps(axis)
    axis.set_ylabel(f"loss{_in_brackets(loss_unit(told.loss))}")
    axis.legend(loc="best", fontsize=8.5)
    save(figure, path)
    caption = "One curve over all attempts: steps made again after a resume replace the earlier ones."
    return Picture(path, "Loss", f"{caption} Dotted: where an attempt resumed." if told.resumes else caption)


def _learning_rate(path: Path, told: _Told) -> Picture:
    figure, (axis,) = canvas(5.2, 3.2)
    axis.plot(_column(told.curve, "applied_steps"), _column(told.curve, "learning_rate"), color=GREEN, linewidth=1.8)
    _mark_resumes(axis, told)
    _count_steps(axis)
    axis.set_ylabel("learning rate")
    axis.set_ylim(bottom=0)
    save(figure, path)
    return Picture(path, "Learning rate", "What the optimizer was given, step by step.", half=True)


def _accuracy(path: Path, told: _Told) -> Picture:
    figure, (axis,) = canvas(5.2, 3.2)
    steps = _column(told.evaluations, "applied_steps")
    shares = _shares(told.evaluations)
    for (name, known), colour in zip(shares.items(), _COLOURS, strict=False):
        factor = 100 if known.unit == "fraction" else 1
        values = factor * _column(told.evaluations, name)
        axis.plot(steps, values, color=colour, marker="o", markersize=4, label=known.label)
    if "nsp_accuracy" in shares:
        axis.axhline(50, color=INK, linewidth=0.8, linestyle=":", label="NSP by chance")
    if told.best:
        axis.axvline(
            float(told.best["applied_steps"]), color=INK, linewidth=0.9, linestyle="--", label="best checkpoint"
        )
    _count_steps(axis)
    axis.set_ylabel("held-out scores (%)")
    axis.set_ylim(min(0.0, axis.get_ylim()[0]), 100)
    axis.legend(loc="best", fontsize=8.5)
    save(figure, path)
    return Picture(path, "Held-out scores", "What the evaluations found, on data that is not trained on.", half=True)


def _shares(evaluations: Sequence[Row]) -> dict[str, Score]:
    """The scores that are shares of a hundred and told where there is room for few."""
    found = _scores(evaluations)
    return {name: known for name, known in found.items() if known.unit in ("fraction", "percent") and known.headline}


def _throughput(path: Path, attempts: Sequence[LoadedTrial], told: _Told) -> Picture:
    figure, (axis,) = canvas(10.6, 3.2)
    curves: list[tuple[Array, Array]] = []
    breaks: list[npt.NDArray[np.int64]] = []
    before = 0.0
    for attempt, pauses in zip(attempts, told.pauses, strict=True):
        rows = [row for row in attempt.steps if row["end_ns"] is not None and row["samples"] is not None]
        if rows:
            own = np.array([(row["end_ns"] - rows[0]["start_ns"]) / 1e9 for row in rows], dtype=np.float64)
            rates = np.array([1000 * row["samples"] / row["step_time_ms"] for row in rows], dtype=np.float64)
            curves.append((before + own, rates))
            # What came before a step was told of before it began.
            breaks.append(np.unique(np.searchsorted([row["start_ns"] for row in rows], pauses)))
            before += own[-1]
    unit, seconds = clock_unit(before)
    dot = _dot_size(sum(len(rates) for _, rates in curves))
    for number, (times, rates) in enumerate(curves):
        axis.plot(times / seconds, rates, linestyle="none", marker=".", markersize=dot, color=GREY, alpha=0.6)
        axis.plot(*_broken(times / seconds, running_median(rates), breaks[number]), color=BLUE, linewidth=1.5)
        if number:
            axis.axvline(curves[number - 1][0][-1] / seconds, color=GREY, linewidth=0.9, linestyle=":")
    axis.set_xlabel(f"time in the loop, attempt after attempt ({unit})")
    axis.set_ylabel("samples/s")
    axis.set_ylim(bottom=0)
    save(figure, path)
    caption = "Every step, and the running median; gaps are evaluations and checkpoints, dotted lines new attempts."
    return Picture(path, "Throughput over time", caption)


def _dot_size(count: int) -> float:
    """The size of a dot of one step, in points: each is seen where they are few, and they make no blot where many."""
    return float(np.clip(60 / np.sqrt(max(1, count)), 1.5, 6))


def _broken(times: Array, values: Array, breaks: npt.NDArray[np.int64]) -> tuple[Array, Array]:
    """Return a curve with a gap before each of these places, which a line does not cross."""
    inner = breaks[(breaks > 0) & (breaks < len(times))]
    return np.insert(times, inner, np.nan), np.insert(values, inner, np.nan)
