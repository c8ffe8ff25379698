"""Trainings of one task with several heads: what each evaluation found, and how long each took."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.metrics.comparison.training_comparison import FINISHED, VariantRun, compare_trainings
from common.scores import scores_in
from records.training import TrainRun, read_events

COLUMNS = ("head", "epoch", "applied_steps", "training_loss", "log_loss", "accuracy", "best")
"""Of a row: one evaluation of one head. training_loss is the mean since the evaluation before."""


@dataclass(frozen=True, slots=True)
class HeadResult:
    """What became of one head."""

    head: str
    training: Mapping[str, Any]
    """Its row of training_comparison: status, loop_seconds, step_seconds, samples_per_second, reason."""
    evaluations: tuple[Mapping[str, Any], ...]
    """COLUMNS, and `scores` by name, in order; one for each evaluation."""
    best_by: str
    """Score that says which of them is the best, as it did which checkpoint stays."""

    @property
    def finished(self) -> bool:
        """Whether the training came to its end."""
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


def table_rows(results: Sequence[HeadResult]) -> list[list[Any]]:
    """Return the evaluations of all heads as rows of COLUMNS."""
    return [[row[name] for name in COLUMNS] for result in results for row in result.evaluations]
