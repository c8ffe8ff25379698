"""The part of a report about a training run: its answer, its attempts and evaluations, its figures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from analysis import wording
from analysis.diagnose.answer import Answer, Card
from analysis.load import LoadedTrial
from analysis.render import tables
from analysis.render.figure import Figure
from analysis.render.page import Block, Gallery, Heading, Prose, Section
from analysis.render.training_figures import (
    Array,
    column,
    evaluation_figure,
    learning_rate_figure,
    loss_figure,
    shown_scores,
    throughput_figure,
)
from common.errors import InputError
from common.scores import Score, in_words, loss_unit
from records.training import TrainRun, read_events

Row = Mapping[str, Any]

# The answer shows the median training loss of this many steps; the loss of one step is mostly noise.
_LAST_STEPS = 10
_BEST = ("checkpoint", "applied_steps", "score", "value")


@dataclass(frozen=True, slots=True)
class TrainingPart:
    """What a page shows of a training run."""

    answer: Answer
    figures: tuple[Figure, ...]
    tables: tuple[tables.Table, ...]
    problems: tuple[str, ...]
    """Records that cannot be read, with the reason."""

    def section(self) -> Section:
        """Return its part of the page."""
        blocks: list[Block] = [Prose(problem, "decides") for problem in self.problems]
        blocks.append(Gallery(self.figures))
        for table in self.tables:
            blocks += [Heading(table.name.capitalize()), table]
        return Section("Training", blocks)


@dataclass(frozen=True, slots=True)
class _Told:
    """What the curve and the events record."""

    curve: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    resumes: list[int]
    attempts: list[dict[str, Any]]
    problems: list[str]
    best: dict[str, Any]
    """Best checkpoint of the run: applied_steps, score, value, checkpoint; empty if there is none."""
    loss: str
    """Terms of the training loss; empty if unknown."""
    pauses: list[list[int]] = field(default_factory=list)
    """For each attempt: times at which evaluations and checkpoints ended, Unix time in ns."""


def training_part(run: TrainRun, trials: Sequence[LoadedTrial], folder: Path) -> TrainingPart | None:
    """Return the part of a page about a training run; None if no trial is of kind train.

    CSV tables go to `folder`. Damaged records are named and the rest is shown. Raises StorageError.
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
    return TrainingPart(_answer(attempts, told), _figures(attempts, told), tuple(shown), tuple(told.problems))


def _read(run: TrainRun, attempts: Sequence[LoadedTrial]) -> _Told:
    told = _Told([], [], [], [], [], {}, run.loss_label())
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
        # Steps repeated after a resume replace the earlier ones.
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
        tables.measured("steps", "steps", wording.count),
        tables.measured("batch", "global_batch_size", wording.count),
        tables.recorded("world_size"),
        tables.recorded("samples_per_second"),
        tables.measured("seconds", "wall_seconds"),
        tables.plain("last checkpoint", "last_checkpoint"),
        tables.Column("status", lambda row: str(row["status"]), wording.status, False),
    ]
    return tables.build("attempts", columns, rows, csv="attempts.csv")


def _evaluations_table(rows: Sequence[Row]) -> tables.Table:
    columns = [
        tables.measured("after step", "applied_steps", wording.count),
        *(tables.measured(_heading(known), name, _form(known)) for name, known in shown_scores(rows).items()),
        tables.measured("samples", "samples", wording.count),
    ]
    if any(row["checkpoint"] for row in rows):
        columns.append(tables.plain("best checkpoint", "checkpoint"))
    return tables.build("evaluations", columns, rows, csv="evaluations.csv")


def _heading(known: Score) -> str:
    """Return a label with its unit, unless the numbers include it."""
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
    name = last.preset if last.model else f"BERT-{last.preset}"
    headline = f"{name} was trained for {made:,} of {total:,} steps of {batch} samples."
    cards: list[Card] = []
    if told.curve:
        cards.append(_training_loss(column(told.curve, "loss"), told.loss))
    if told.evaluations:
        found = told.evaluations[-1]
        after = f"after step {found['applied_steps']:,}"
        for name, known in shown_scores([found]).items():
            if known.headline:
                label, unit = ("held-out " + known.label, "nats, ") if known.unit == "nats" else (known.label, "")
                cards.append(Card(label, _form(known)(found[name]), unit + after))
    timed = [row for row in told.attempts if row["samples_per_second"]]
    if timed:
        # One that did not end well has no rate.
        which = "the last attempt" if timed[-1] is told.attempts[-1] else f"attempt {timed[-1]['attempt']}"
        rate = wording.number(timed[-1]["samples_per_second"])
        cards.append(Card("samples per second", rate, f"after the warm-up of {which}"))
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
        reason = ended["reason"] or "no reason recorded"
        sentences.insert(0, f"The last attempt ended with status {ended['status']}: {reason}.")
    return Answer(headline, tuple(cards), tuple(sentences))


def _training_loss(losses: Array, sum_of: str) -> Card:
    if not np.isfinite(losses[-1]):
        return Card("training loss", "not finite", "in the last step")
    last = losses[-_LAST_STEPS:]
    return Card(
        "training loss",
        wording.fine(np.nanmedian(last)),
        ", ".join(filter(None, [loss_unit(sum_of), sum_of, f"median of the last {len(last)} steps"])),
    )


def _figures(attempts: Sequence[LoadedTrial], told: _Told) -> tuple[Figure, ...]:
    best = told.best.get("applied_steps")
    drawn = [
        *([loss_figure(told.curve, told.evaluations, told.resumes, told.loss)] if told.curve else []),
        *([learning_rate_figure(told.curve, told.resumes)] if told.curve else []),
        evaluation_figure(told.evaluations, None if best is None else float(best)),
        throughput_figure(attempts, told.pauses),
    ]
    return tuple(figure for figure in drawn if figure is not None)
