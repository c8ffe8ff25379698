"""The part of a report about a training run: its answer, its attempts and evaluations, its figures."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analysis import wording
from analysis.diagnose.answer import Answer, Card
from analysis.load import LoadedTrial
from analysis.metrics.comparison.trainings import evaluations_of
from analysis.render.page import Figures, Section
from analysis.render.tables import Table, columns, computed, measured
from analysis.render.training_figures import column, evaluation_figure, learning_rate_figure, loss_figure, shown_scores
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
    attempts: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)


def training_part(run: TrainRun, trials: Sequence[LoadedTrial]) -> tuple[list[Answer], list[Section]]:
    """Return the answer and the section of a page about a training; nothing if no trial is of kind train.

    Raises SchemaError: the curve or the events of an attempt are damaged.
    """
    attempts = sorted((trial for trial in trials if trial.trial.kind == "train"), key=lambda trial: trial.trial.round)
    if not attempts:
        return [], []
    records = _read(run, attempts)
    curve, evaluations = records.curve, records.evaluations
    names = "attempt from_step steps global_batch_size world_size samples_per_second wall_seconds last_checkpoint"
    status = computed("status", wording.status)
    shown = [Section("Attempts", [Table("attempts", [*columns(names), status], records.attempts)])]
    if evaluations:
        units = {"nats": " (nats)", "percent": " (%)"}
        scores = [measured(known.label + units.get(known.unit, ""), name, _form(known))
                  for name, known in shown_scores(evaluations).items()]  # fmt: skip
        parts = [*columns("applied_steps"), *scores, *columns("samples")]
        shown.append(Section("Evaluations", [Table("evaluations", parts, evaluations)]))
    figures = []
    if curve:
        figures = [loss_figure(curve, evaluations, records.loss), learning_rate_figure(curve)]
    if (scored := evaluation_figure(evaluations)) is not None:
        figures.append(scored)
    return [_answer(attempts[-1], records)], [Section("Training", [Figures(figures), *shown])]


def _read(run: TrainRun, attempts: Sequence[LoadedTrial]) -> _Records:
    records = _Records(loss=run.read_state().loss, curve=run.read_curve())
    for attempt in attempts:
        events = read_events(attempt.directory)
        resumed = [event["applied_steps"] for event in events if event["event"] == "resumed" and not event["new_phase"]]
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
    records.evaluations += evaluations_of(run).values()
    return records


def _form(known: Score) -> str:
    return "percent" if known.unit == "fraction" else "fine"


def _answer(newest: LoadedTrial, records: _Records) -> Answer:
    last = newest.trial
    total = int(dict(last.training).get("steps") or last.max_steps)
    made = int(records.curve[-1]["applied_steps"]) if records.curve else 0
    name = last.preset if last.model else f"BERT-{last.preset}"
    sentences = []
    ended, best = records.attempts[-1], records.best
    if ended["status"] != "ok":
        reason = ended["reason"] or "no reason recorded"
        sentences.append(f"The last attempt ended with status {ended['status']}: {reason}.")
    if best and best["value"] is not None:
        reached, step = in_words(str(best["score"]), float(best["value"])), f"{best['applied_steps']:,}"
        sentences.append(f"The best checkpoint is {best['checkpoint']}: {reached} after step {step}.")
    headline = f"{name} was trained for {made:,} of {total:,} steps of {last.global_batch_size:,} samples."
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
