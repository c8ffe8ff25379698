"""The part of a report about a training run: its answer, its attempts and evaluations, its figures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from analysis import wording
from analysis.diagnose.answer import Answer, Card
from analysis.load import LoadedTrial
from analysis.metrics.comparison.trainings import evaluations_of
from analysis.render.page import Figures, Section
from analysis.render.tables import Table, columns, computed, measured, write_csv
from analysis.render.training_figures import (
    column,
    evaluation_figure,
    learning_rate_figure,
    loss_figure,
    shown_scores,
    throughput_figure,
)
from common.scores import Score, in_words, loss_unit
from records.training import TrainRun, read_events

_LAST_STEPS = 10
"""The answer shows the median training loss of this many steps; the loss of one step is mostly noise."""
_BEST = ("checkpoint", "applied_steps", "score", "value")


@dataclass(kw_only=True, slots=True)
class _Records:
    """What the curve and the events of a training record; those of `best` are of the best checkpoint."""

    loss: str
    curve: Sequence[dict[str, Any]]
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    resumes: list[int] = field(default_factory=list)
    attempts: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)


def training_part(
    run: TrainRun, trials: Sequence[LoadedTrial]
) -> tuple[list[Answer], list[Section], dict[str, Callable[[Path], None]]]:
    """Return the answer, the section and the files of a page about a training; nothing if no trial is of kind train.

    Raises SchemaError: the curve or the events of an attempt are damaged.
    """
    attempts = sorted((trial for trial in trials if trial.trial.kind == "train"), key=lambda trial: trial.trial.round)
    if not attempts:
        return [], [], {}
    records = _read(run, attempts)
    curve, evaluations = records.curve, records.evaluations
    names = "attempt from_step steps global_batch_size world_size samples_per_second wall_seconds last_checkpoint"
    status = computed("status", wording.status)
    table = Table("attempts", [*columns(names), status], records.attempts, csv="attempts.csv")
    shown = [Section("Attempts", [table])]
    files: dict[str, Callable[[Path], None]] = {"attempts.csv": partial(write_csv, rows=records.attempts)}
    if evaluations:
        units = {"nats": " (nats)", "percent": " (%)"}
        scores = [measured(known.label + units.get(known.unit, ""), name, _form(known))
                  for name, known in shown_scores(evaluations).items()]  # fmt: skip
        best = (
            columns("checkpoint", checkpoint="best checkpoint") if any(row["checkpoint"] for row in evaluations) else []
        )
        parts = [*columns("applied_steps"), *scores, *columns("samples"), *best]
        shown.append(Section("Evaluations", [Table("evaluations", parts, evaluations, csv="evaluations.csv")]))
        files["evaluations.csv"] = partial(write_csv, rows=evaluations)
    drawn = [
        *([loss_figure(curve, evaluations, records.resumes, records.loss)] if curve else []),
        *([learning_rate_figure(curve)] if curve else []),
        evaluation_figure(evaluations),
        throughput_figure(attempts),
    ]
    figures = Figures([figure for figure in drawn if figure is not None])
    return [_answer(attempts, records)], [Section("Training", [figures, *shown])], files


def _read(run: TrainRun, attempts: Sequence[LoadedTrial]) -> _Records:
    records = _Records(loss=run.loss_label(), curve=run.read_curve())
    for attempt in attempts:
        events = read_events(attempt.directory)
        resumed = [event["applied_steps"] for event in events if event["event"] == "resumed" and not event["new_phase"]]
        records.resumes += resumed
        saved = [event for event in events if event["event"] == "saved"]
        if saved:
            known = saved[-1].get("best_checkpoint") is not None
            records.best = {name: saved[-1].get(f"best_{name}") for name in _BEST} if known else {}
        row = {"attempt": attempt.trial.round + 1, "status": attempt.row["status"]}
        row |= {"from_step": resumed[0] if resumed else 0, "steps": len(attempt.steps)}
        row |= {name: attempt.row.get(name) for name in ("wall_seconds", "samples_per_second")}
        row |= {name: getattr(attempt.trial, name) for name in ("world_size", "global_batch_size")}
        row |= {"last_checkpoint": saved[-1]["path"] if saved else "", "reason": attempt.row.get("reason") or ""}
        records.attempts.append(row)
    for step, row in evaluations_of(run).items():
        scores = {name: value for name, value in row.items() if name not in ("event", "time_ns", "seconds", "best")}
        is_best = step == records.best.get("applied_steps")
        records.evaluations.append({**scores, "checkpoint": records.best["checkpoint"] if is_best else ""})
    return records


def _form(known: Score) -> str:
    return "percent" if known.unit == "fraction" else "fine"


def _answer(attempts: Sequence[LoadedTrial], records: _Records) -> Answer:
    last, count = attempts[-1].trial, len(attempts)
    total = int(dict(last.training).get("steps") or last.max_steps)
    made = int(records.curve[-1]["applied_steps"]) if records.curve else 0
    sizes = sorted({one.trial.global_batch_size for one in attempts if one.steps} or {last.global_batch_size})
    batch = " to ".join(f"{size:,}" for size in dict.fromkeys((sizes[0], sizes[-1])))
    name = last.preset if last.model else f"BERT-{last.preset}"
    sentences = []
    ended, best = records.attempts[-1], records.best
    if ended["status"] != "ok":
        reason = ended["reason"] or "no reason recorded"
        sentences.append(f"The last attempt ended with status {ended['status']}: {reason}.")
    if count > 1:
        again = len(records.resumes) or "none"
        sentences.append(f"It took {count} attempts, {again} of which resumed from a checkpoint.")
    if best and best["value"] is not None:
        reached, step = in_words(str(best["score"]), float(best["value"])), f"{best['applied_steps']:,}"
        sentences.append(f"The best checkpoint is {best['checkpoint']}: {reached} after step {step}.")
    headline = f"{name} was trained for {made:,} of {total:,} steps of {batch} samples."
    return Answer(headline=headline, cards=tuple(_cards(records)), sentences=tuple(sentences))


def _cards(records: _Records) -> list[Card]:
    cards: list[Card] = []
    if records.curve:
        last = column(records.curve, "loss")[-_LAST_STEPS:]
        over = ", ".join(filter(None, [loss_unit(records.loss), records.loss, f"median of the last {len(last)} steps"]))
        finite = bool(np.isfinite(last[-1]))
        value = wording.fine(np.nanmedian(last)) if finite else "not finite"
        cards.append(Card("training loss", value, over if finite else "in the last step"))
    for evaluation in records.evaluations[-1:]:
        after = f"after step {evaluation['applied_steps']:,}"
        for name, known in shown_scores([evaluation]).items():
            if known.headline:
                label, unit = ("held-out " + known.label, "nats, ") if known.unit == "nats" else (known.label, "")
                cards.append(Card(label, wording.FORMS[_form(known)](evaluation[name]), unit + after))
    timed = [row for row in records.attempts if row["samples_per_second"]]
    if timed:  # an attempt that did not end well has no rate
        which = "the last attempt" if timed[-1] is records.attempts[-1] else f"attempt {timed[-1]['attempt']}"
        rate = wording.number(timed[-1]["samples_per_second"])
        cards.append(Card("samples per second", rate, f"after the warm-up of {which}"))
    return cards
