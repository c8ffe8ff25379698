"""Trainings of the same thing by several strategies or on several devices, compared with each other step by step.

A run's time is that of its loop: from the start of the first step to the end of the last one and what follows it, with
evaluations and checkpoints, without what lies between attempts and steps that were made again. A step takes as long as
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

Array = npt.NDArray[np.float64]
Row = Mapping[str, Any]

# Of a training that is whole; others have the status of their last attempt.
FINISHED, STOPPED, NOT_BEGUN = "finished", "stopped", "not begun"


@dataclass(frozen=True, kw_only=True, slots=True)
class VariantRun:
    """One training of a comparison, where it lies."""

    strategy: str
    devices: int
    run: TrainRun
    name: str = ""
    """What tables call it; "" for its strategy and devices."""
    implementation: str = "bertbench"
    profile: Mapping[str, Any] = field(default_factory=dict)
    """Columns of exposure.all_reduce, or `profile_problem`; empty where no profile was wanted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VariantCurve:
    """The course of one training, a value per step."""

    row: Row
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
    """COMPARISON_COLUMNS, `scores` by name, and `cautions` of the newest attempt."""
    curves: tuple[VariantCurve, ...]
    epochs: float | None
    """How often the whole run sees every sample; None where that is not known."""

    @property
    def failed(self) -> list[dict[str, Any]]:
        """Rows of the variants that did not reach their end."""
        return [row for row in self.rows if row["status"] != FINISHED]


def compare_trainings(variants: Sequence[VariantRun], samples_per_epoch: int | None = None) -> TrainingComparison:
    """Compare every variant with the first one that made steps.

    samples_per_epoch is None where the training data are without end. Raises SchemaError: a record is damaged.
    """
    runs = [_read(variant, samples_per_epoch) for variant in variants]
    first = next(((row, curve) for row, curve, _ in runs if curve), None)
    curves = []
    for row, curve, seconds in runs:
        if first is not None and curve:
            row |= _against(row, curve, *first)
            values = {
                name: np.array([math.nan if _finite(entry[name]) is None else entry[name] for entry in curve], float)
                for name in ("loss", "learning_rate")
            }
            samples = np.array([entry["samples"] for entry in curve])
            percent = 100 * samples / (row["total_steps"] * row["global_batch_size"])
            times = np.array([seconds.get(entry["step"], math.nan) for entry in curve])
            curves.append(VariantCurve(row=row, seconds=times, percent=percent, **values))
    totals = [row["total_steps"] * row["global_batch_size"] for row, *_ in runs if row["total_steps"]]
    epochs = max(totals) / samples_per_epoch if totals and samples_per_epoch else None
    return TrainingComparison(rows=tuple(row for row, *_ in runs), curves=tuple(curves), epochs=epochs)


def _read(
    variant: VariantRun, samples_per_epoch: int | None
) -> tuple[dict[str, Any], list[dict[str, Any]], dict[int, float]]:
    """Return the row of a training, its curve, and the time in the loop at the end of each step, s."""
    row: dict[str, Any] = dict.fromkeys(COMPARISON_COLUMNS)
    row |= {"strategy": variant.strategy, "devices": variant.devices, "status": NOT_BEGUN, "reason": ""}
    row |= {"implementation": variant.implementation, "name": variant.name}
    row |= {"scores": {}, "cautions": []}
    row |= {name: value for name, value in variant.profile.items() if name in row}
    attempts = variant.run.attempts()
    if not attempts:
        return row, [], {}
    state, trial, newest = variant.run.read_state() or {}, attempts[-1].read_trial(), attempts[-1]
    row |= {name: getattr(trial, name) for name in ("device", "precision", "global_batch_size", "micro_batch_size")}
    label = strategy_label(trial.strategy, trial.strategy_options, trial.activation_checkpointing, trial.allocator)
    row["optimisation"] = ", ".join([trial.implementation, label, trial.precision])
    row |= {"grad_accum_steps": trial.grad_accum_steps, "attempts": len(attempts), "log": str(newest.log)}
    row["total_steps"] = dict(trial.training).get("steps") or trial.max_steps
    row["status"], row["reason"] = status_of(state)
    row["cautions"] = list((newest.read_result() or {}).get("cautions") or [])
    records = next(([*by_rank.values()] for one in reversed(attempts) if (by_rank := one.read_ranks())), [])
    for name in ("threads", "peak_memory_bytes", "peak_memory_kind", "parameters", "backend"):
        values = [record[name] for record in records if record.get(name) is not None]
        row["threads_per_rank" if name == "threads" else name] = max(values, default=None)
    if evaluation := state.get("evaluation"):
        row |= {"scores": scores_in(evaluation), "evaluation_samples": evaluation["samples"]}
    curve = variant.run.read_curve()
    if not curve:
        return row, [], {}
    last = curve[-1]
    times = {step: entry for step, entry in steps_made(attempts).items() if step <= last["step"]}
    row |= {"steps": last["applied_steps"], "samples": last["samples"], "last_loss": _finite(last["loss"])}
    row["epochs"] = last["samples"] / samples_per_epoch if samples_per_epoch else None
    if times:
        step_ms = [step["step_time_ms"] for _, step in times.values()]
        row["step_seconds"], row["step_time_ms"] = sum(step_ms) / 1000, float(np.median(step_ms))
        row["loop_seconds"] = max(seconds for seconds, _ in times.values()) + sum(
            float(event["seconds"])
            for event in read_events(newest)
            if event["event"] in ("evaluated", "saved") and event["applied_steps"] == last["applied_steps"]
        )
        counts = np.diff([0, *(entry["samples"] for entry in curve)]).tolist()
        timed = sum(count for entry, count in zip(curve, counts, strict=True) if entry["step"] in times)
        row["samples_per_second"] = timed / row["step_seconds"]
        row["epoch_seconds"] = samples_per_epoch / row["samples_per_second"] if samples_per_epoch else None
        if len(ranks := newest.ranks()) > 1:
            losses = ({step["step"]: step["loss"] for step in newest.read_steps(rank)} for rank in ranks)
            row["loss_per_rank"] = [_finite(loss.get(last["step"])) for loss in losses]
    return row, curve, {step: seconds for step, (seconds, _) in times.items()}


def status_of(state: Row) -> tuple[str, str]:
    """Return status and reason of a training by its state (TrainRun.read_state)."""
    if state.get("finished"):
        return FINISHED, ""
    status = str(state.get("status", "interrupted"))
    return (STOPPED if status == "ok" else status), str(state.get("reason") or "")


def steps_made(attempts: Sequence[TrialDirectory]) -> dict[int, tuple[float, dict[str, Any]]]:
    """Return by step when it ended, in seconds of the loop, and its row of ranks.combine; the last time it was made."""
    made: dict[int, tuple[float, dict[str, Any]]] = {}
    for directory in attempts:
        steps = combine({rank: directory.read_steps(rank) for rank in directory.ranks()})
        steps = [row for row in steps if row["start_ns"] is not None]
        if not steps:
            continue
        made = {step: times for step, times in made.items() if step < steps[0]["step"]}
        before = max((seconds for seconds, _ in made.values()), default=0.0)
        made |= {row["step"]: (before + (row["end_ns"] - steps[0]["start_ns"]) / 1e9, row) for row in steps}
    return made


def _against(row: Row, curve: Sequence[Row], first: Row, first_curve: Sequence[Row]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    rate, before = row["samples_per_second"], first["samples_per_second"]
    if rate and before:
        columns["speedup"] = rate / before
        if row["samples"] == first["samples"]:
            columns["seconds_saved"] = first["step_seconds"] - row["step_seconds"]
            columns["time_saved"] = columns["seconds_saved"] / first["step_seconds"]
    losses = {entry["step"]: _finite(entry["loss"]) for entry in first_curve}
    pairs = [(_finite(entry["loss"]), losses.get(entry["step"]), entry["step"]) for entry in curve]
    differences = [(abs(one - other), -step) for one, other, step in pairs if one is not None and other is not None]
    columns["compared_steps"] = len(differences)
    if differences:
        greatest, step = max(differences)
        columns |= {"greatest_loss_difference": greatest, "greatest_loss_difference_step": -step}
    return columns


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class HeadResult:
    """The training of one head."""

    head: str
    training: Mapping[str, Any]
    """Its row of TrainingComparison."""
    evaluations: tuple[Mapping[str, Any], ...]
    """HEAD_COLUMNS, and `scores` by name, in order; one for each evaluation."""
    best_by: str

    @property
    def best(self) -> Mapping[str, Any] | None:
        """The best evaluation, the earliest of several; None without any."""
        return next((row for row in self.evaluations if row["best"]), None)


def compare_heads(
    runs: Mapping[str, TrainRun], samples_per_epoch: int, best_by: str, higher_is_better: bool
) -> list[HeadResult]:
    """Return the results of trainings that differ in their head alone, given by head.

    The best evaluation is chosen as the trainings choose their best checkpoint. Raises SchemaError: a record is
    damaged.
    """
    variants = [VariantRun(strategy=head, devices=1, run=run) for head, run in runs.items()]
    rows = compare_trainings(variants, samples_per_epoch).rows
    results = []
    for (head, run), row in zip(runs.items(), rows, strict=True):
        evaluations = _evaluations(head, run, samples_per_epoch)
        known = [one for one in evaluations if one["scores"].get(best_by) is not None]
        if known:
            choose = max if higher_is_better else min
            choose(known, key=lambda one: float(one["scores"][best_by]))["best"] = True
        results.append(HeadResult(head, row, tuple(evaluations), best_by))
    return results


def evaluations_of(run: TrainRun) -> dict[int, dict[str, Any]]:
    """Return the events of a run's evaluations by updates made; one that was made again after a resume counts once."""
    events = [event for directory in run.attempts() for event in read_events(directory)]
    made = {event["applied_steps"]: event for event in events if event["event"] == "evaluated"}
    return dict(sorted(made.items()))


def _evaluations(head: str, run: TrainRun, samples_per_epoch: int) -> list[dict[str, Any]]:
    curve = {row["applied_steps"]: row for row in run.read_curve()}
    rows: list[dict[str, Any]] = []
    before = 0
    for steps, event in evaluations_of(run).items():
        if steps not in curve:
            continue  # the steps before it were lost, with what it says
        losses = [row["loss"] for step, row in curve.items() if before < step <= steps and row["loss"] is not None]
        row = {"head": head, "epoch": curve[steps]["samples"] / samples_per_epoch, "applied_steps": steps}
        row |= {"training_loss": sum(losses) / len(losses) if losses else None, "best": False}
        row["scores"] = scores = scores_in(event)
        rows.append(row | {name: scores.get(name) for name in ("log_loss", "accuracy")})
        before = steps
    return rows
