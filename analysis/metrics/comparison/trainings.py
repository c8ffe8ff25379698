"""Trainings of the same thing by several strategies or on several devices, compared with each other step by step.

A run's time is that of its loop: from the start of the first step to the end of the last one, attempt after attempt,
with evaluations and checkpoints, those behind the last step too, without what lies between attempts and without steps
that were made again later. The time of the steps alone leaves evaluations and checkpoints out; a step takes as long as
its slowest rank does.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.metrics.ranks import combine
from analysis.wording import strategy_label
from common.scores import scores_in
from records.run import TrialDirectory
from records.schema import COMPARISON_COLUMNS
from records.training import TrainRun, read_events
from records.trial import Trial

Array = npt.NDArray[np.float64]
Row = Mapping[str, Any]

# Of a variant whose training is whole; others carry the status of their last attempt.
FINISHED = "finished"
STOPPED = "stopped"
NOT_BEGUN = "not begun"


@dataclass(frozen=True, kw_only=True, slots=True)
class VariantRun:
    """One training of a comparison, where it lies."""

    strategy: str
    """How it is trained: a name in bert.parallel."""
    devices: int
    """Devices, one process each."""
    run: TrainRun
    name: str = ""
    """What tables call it; "" for its strategy and devices."""
    implementation: str = "bertbench"
    """Whose code trains, as analysis.wording.implementation_label calls it."""
    profile: Mapping[str, Any] = field(default_factory=dict)
    """What exposure.all_reduce found, or `profile_problem`; empty where no profile was wanted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VariantCurve:
    """The course of one training, a value per step."""

    row: Row
    scores: Mapping[str, float | None]
    seconds: Array
    """In the loop, at the end of the step; NaN where the step has no time."""
    percent: Array
    """Of the samples of the whole run, seen at the end of the step."""
    loss: Array
    """Training loss; NaN where it was not finite."""
    learning_rate: Array


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingComparison:
    """Trainings compared with the first one."""

    rows: tuple[dict[str, Any], ...]
    """COMPARISON_COLUMNS, `scores` by name, and `cautions` of its newest attempt ([{code, message, remedy}])."""
    curves: tuple[VariantCurve, ...]
    epochs: float | None
    """How often the whole run sees every sample; None where that is not known."""

    @property
    def failed(self) -> list[dict[str, Any]]:
        """Rows of the variants that did not reach their end."""
        return [row for row in self.rows if row["status"] != FINISHED]


@dataclass(frozen=True, slots=True)
class _Read:
    """What one run directory holds."""

    row: dict[str, Any]
    curve: list[dict[str, Any]]
    times: dict[int, tuple[float, float]]


def compare_trainings(variants: Sequence[VariantRun], samples_per_epoch: int | None = None) -> TrainingComparison:
    """Hold every variant against the first one that made steps.

    Args:
        variants: in the order in which they are shown.
        samples_per_epoch: samples of the training data; None where they are without end.

    Raises:
        SchemaError: a record of a run is damaged; the message names it.
    """
    read = [_read(variant, samples_per_epoch) for variant in variants]
    first = next((found for found in read if found.curve), None)
    curves = []
    for found in read:
        if first is not None and found.curve:
            found.row.update(_against(found, first))
            curves.append(_curve(found))
    totals = [found.row["total_steps"] * found.row["global_batch_size"] for found in read if found.row["total_steps"]]
    epochs = max(totals) / samples_per_epoch if totals and samples_per_epoch else None
    return TrainingComparison(rows=tuple(found.row for found in read), curves=tuple(curves), epochs=epochs)


def _read(variant: VariantRun, samples_per_epoch: int | None) -> _Read:
    row: dict[str, Any] = dict.fromkeys(COMPARISON_COLUMNS)
    row |= {"strategy": variant.strategy, "devices": variant.devices, "status": NOT_BEGUN, "reason": ""}
    row |= {"implementation": variant.implementation, "name": variant.name}
    row |= {"scores": {}, "cautions": []}
    row |= {name: value for name, value in variant.profile.items() if name in row}
    attempts, state = variant.run.attempts(), variant.run.read_state() or {}
    if not attempts:
        return _Read(row, [], {})
    trial = attempts[-1].read_trial()
    row |= {name: getattr(trial, name) for name in ("device", "precision", "global_batch_size", "micro_batch_size")}
    row["optimisation"] = _optimisation(trial)
    row |= {"grad_accum_steps": trial.grad_accum_steps, "attempts": len(attempts), "log": str(attempts[-1].log)}
    row["total_steps"] = dict(trial.training).get("steps") or trial.max_steps
    row["status"], row["reason"] = _status(state)
    row["cautions"] = list((attempts[-1].read_result() or {}).get("cautions") or [])
    row |= _of_ranks(attempts)
    evaluation = state.get("evaluation")
    if evaluation:
        row |= {"scores": scores_in(evaluation), "evaluation_samples": evaluation["samples"]}
    curve, times = variant.run.read_curve(), _times(attempts)
    if not curve:
        return _Read(row, [], {})
    last = curve[-1]
    times = {step: found for step, found in times.items() if step <= last["step"]}
    row |= {"steps": last["applied_steps"], "samples": last["samples"], "last_loss": _finite(last["loss"])}
    row["epochs"] = last["samples"] / samples_per_epoch if samples_per_epoch else None
    if times:
        step_ms = [milliseconds for _, milliseconds in times.values()]
        row["step_seconds"], row["step_time_ms"] = sum(step_ms) / 1000, float(np.median(step_ms))
        row["loop_seconds"] = max(seconds for seconds, _ in times.values()) + _seconds_behind(attempts[-1], last)
        timed = [entry for entry in _with_counts(curve) if entry[0] in times]
        row["samples_per_second"] = sum(count for _, count in timed) / row["step_seconds"]
        row["epoch_seconds"] = samples_per_epoch / row["samples_per_second"] if samples_per_epoch else None
        row["loss_per_rank"] = _losses_of_ranks(attempts[-1], last["step"])
    return _Read(row, curve, times)


def _status(state: Row) -> tuple[str, str]:
    if state.get("finished"):
        return FINISHED, ""
    status = str(state.get("status", "interrupted"))
    return (STOPPED if status == "ok" else status), str(state.get("reason") or "")


def _of_ranks(attempts: Sequence[TrialDirectory]) -> dict[str, Any]:
    for directory in reversed(attempts):
        records = directory.read_ranks().values()
        if records:
            found = {}
            for name, key in _OF_RANKS:
                values = [record[key] for record in records if record.get(key) is not None]
                found[name] = max(values, default=None)
            return found
    return {}


# Of a row -> of the ranks' records.
_OF_RANKS = (
    ("threads_per_rank", "threads"),
    ("peak_memory_bytes", "peak_memory_bytes"),
    ("peak_memory_kind", "peak_memory_kind"),
    ("parameters", "parameters"),
    ("backend", "backend"),
)


def _optimisation(trial: Trial) -> str:
    label = strategy_label(trial.strategy, trial.strategy_options, trial.activation_checkpointing, trial.allocator)
    return ", ".join([trial.implementation, label, trial.precision])


def _losses_of_ranks(directory: TrialDirectory, step: int) -> list[float | None] | None:
    """Each rank's own loss of a step; None where there is one rank."""
    ranks = directory.ranks()
    if len(ranks) < 2:
        return None
    losses = ({row["step"]: row["loss"] for row in directory.read_steps(rank)} for rank in ranks)
    return [_finite(found.get(step)) for found in losses]


def _times(attempts: Sequence[TrialDirectory]) -> dict[int, tuple[float, float]]:
    """Return by step when it ended, in seconds of the loop, and how long it took, ms; the last time it was made."""
    return {step: (seconds, row["step_time_ms"]) for step, (seconds, row) in steps_made(attempts).items()}


def steps_made(attempts: Sequence[TrialDirectory]) -> dict[int, tuple[float, dict[str, Any]]]:
    """Return by step when it ended, in seconds of the loop, and its row of ranks.combine; the last time it was made."""
    found: dict[int, tuple[float, dict[str, Any]]] = {}
    for directory in attempts:
        steps = combine({rank: directory.read_steps(rank) for rank in directory.ranks()})
        steps = [row for row in steps if row["start_ns"] is not None]
        if not steps:
            continue
        found = {step: times for step, times in found.items() if step < steps[0]["step"]}
        before = max((seconds for seconds, _ in found.values()), default=0.0)
        began = steps[0]["start_ns"]
        for row in steps:
            found[row["step"]] = (before + (row["end_ns"] - began) / 1e9, row)
    return found


def _seconds_behind(directory: TrialDirectory, last: Row) -> float:
    return sum(
        float(event["seconds"])
        for event in read_events(directory)
        if event["event"] in ("evaluated", "saved") and event["applied_steps"] == last["applied_steps"]
    )


def _with_counts(curve: Sequence[Row]) -> list[tuple[int, int]]:
    counts = np.diff([0, *(row["samples"] for row in curve)])
    return [(row["step"], int(count)) for row, count in zip(curve, counts, strict=True)]


def _against(found: _Read, first: _Read) -> dict[str, Any]:
    told: dict[str, Any] = {}
    rate, before = found.row["samples_per_second"], first.row["samples_per_second"]
    if rate and before:
        told["speedup"] = rate / before
    if rate and before and found.row["samples"] == first.row["samples"]:
        told["seconds_saved"] = first.row["step_seconds"] - found.row["step_seconds"]
        told["time_saved"] = told["seconds_saved"] / first.row["step_seconds"]
    losses = {row["step"]: row["loss"] for row in first.curve}
    differences = [
        (abs(row["loss"] - losses[row["step"]]), row["step"])
        for row in found.curve
        if _finite(row["loss"]) is not None and _finite(losses.get(row["step"])) is not None
    ]
    told["compared_steps"] = len(differences)
    if differences:
        greatest = max(differences, key=lambda item: (item[0], -item[1]))
        told["greatest_loss_difference"], told["greatest_loss_difference_step"] = greatest
    return told


def _curve(found: _Read) -> VariantCurve:
    row = found.row
    total = row["total_steps"] * row["global_batch_size"]
    return VariantCurve(
        row=row,
        scores=row["scores"],
        seconds=np.array([found.times.get(entry["step"], (math.nan, 0.0))[0] for entry in found.curve]),
        percent=np.array([100 * entry["samples"] / total for entry in found.curve]),
        loss=_column(found.curve, "loss"),
        learning_rate=_column(found.curve, "learning_rate"),
    )


def _column(rows: Sequence[Row], name: str) -> Array:
    values = [_finite(row[name]) for row in rows]
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class HeadResult:
    """What became of one head."""

    head: str
    training: Mapping[str, Any]
    """Its row of training_comparison: status, loop_seconds, step_seconds, samples_per_second, reason."""
    evaluations: tuple[Mapping[str, Any], ...]
    """HEAD_COLUMNS, and `scores` by name, in order; one for each evaluation."""
    best_by: str
    """Score that says which of them is the best, as it did which checkpoint stays."""

    @property
    def finished(self) -> bool:
        """Whether the training finished."""
        return bool(self.training["status"] == FINISHED)

    @property
    def seconds(self) -> float | None:
        """Return the time of the training's loop, evaluations and checkpoints included."""
        found: float | None = self.training["loop_seconds"]
        return found

    @property
    def best(self) -> Mapping[str, Any] | None:
        """Return the best evaluation, the earliest of several; None without any."""
        return next((found for found in self.evaluations if found["best"]), None)


def compare_heads(
    runs: Mapping[str, TrainRun], samples_per_epoch: int, best_by: str, higher_is_better: bool
) -> list[HeadResult]:
    """Return what lies in the run directories of trainings that differ in their head alone.

    Args:
        runs: run directory by head.
        samples_per_epoch: samples of the training data.
        best_by: score of the evaluations that the trainings choose their best checkpoint by.
        higher_is_better: whether more of it is better.

    Raises:
        SchemaError: a record is damaged.
    """
    variants = [VariantRun(strategy=head, devices=1, run=run) for head, run in runs.items()]
    rows = compare_trainings(variants, samples_per_epoch).rows
    results = []
    for (head, run), row in zip(runs.items(), rows, strict=True):
        found = _evaluations(head, run, samples_per_epoch)
        _mark_best(found, best_by, higher_is_better)
        results.append(HeadResult(head, row, tuple(found), best_by))
    return results


def _evaluations(head: str, run: TrainRun, samples_per_epoch: int) -> list[dict[str, Any]]:
    curve = {row["applied_steps"]: row for row in run.read_curve()}
    # An evaluation that was made again after a resume counts once.
    events = {
        event["applied_steps"]: event
        for directory in run.attempts()
        for event in read_events(directory)
        if event["event"] == "evaluated"
    }
    found: list[dict[str, Any]] = []
    before = 0
    for steps, event in sorted(events.items()):
        if steps not in curve:
            continue  # the steps before it were lost, with what it says
        losses = [row["loss"] for step, row in curve.items() if before < step <= steps and row["loss"] is not None]
        scores = scores_in(event)
        found.append(
            {
                "head": head,
                "epoch": curve[steps]["samples"] / samples_per_epoch,
                "applied_steps": steps,
                "training_loss": sum(losses) / len(losses) if losses else None,
                "log_loss": scores.get("log_loss"),
                "accuracy": scores.get("accuracy"),
                "best": False,
                "scores": scores,
            }
        )
        before = steps
    return found


def _mark_best(evaluations: list[dict[str, Any]], score: str, higher_is_better: bool) -> None:
    known = [row for row in evaluations if row["scores"].get(score) is not None]
    if known:
        choose = max if higher_is_better else min
        choose(known, key=lambda row: float(row["scores"][score]))["best"] = True
