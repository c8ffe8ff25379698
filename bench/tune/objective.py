"""What a search makes better: a score of the evaluations of a training, or its training loss."""

from dataclasses import dataclass

from bert.data.lengths import is_synthetic
from bert.tasks import make_task
from bert.train.settings import TrainSettings
from common.errors import UsageError
from records.training import TrainRun, read_events

TRAINING_LOSS = "loss"
"""The objective that needs no evaluation: the mean training loss of the last tenth of the steps."""
# Readings of the training loss: means over equal parts of the run.
_PARTS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    """A number that a training tells more than once."""

    name: str
    """A score of the task's evaluations, or TRAINING_LOSS."""
    maximize: bool
    """Whether more of it is better."""
    best_by: str | None = None
    """What trainings are told to choose their best checkpoint by; None is the task's own choice."""

    @property
    def evaluated(self) -> bool:
        """Whether trials have to be evaluated."""
        return self.name != TRAINING_LOSS

    def readings(self, run: TrainRun, total_steps: int) -> list[float | None]:
        """Return what a run has told so far, in its order: one number per evaluation, or per tenth of the run.

        Of a run that went on from a checkpoint the steps that were made again count once. None is not finite.

        Raises:
            SchemaError: its records are damaged.
        """
        if not self.evaluated:
            return _loss_readings(run, total_steps)
        found = {
            event["applied_steps"]: event.get(self.name)
            for directory in run.attempts()
            for event in read_events(directory)
            if event["event"] == "evaluated"
        }
        return [found[step] for step in sorted(found)]

    def result(self, readings: list[float | None]) -> float | None:
        """Return what counts in the end: the best evaluation, whose checkpoint stays, or the last training loss.

        None where there is none, or where the last one is not finite.
        """
        known = [value for value in readings if value is not None]
        if not known or readings[-1] is None:
            return None
        if not self.evaluated:
            return known[-1]
        return max(known) if self.maximize else min(known)


def make_objective(settings: TrainSettings, name: str | None) -> Objective:
    """Return the objective of a search.

    Args:
        settings: of one of its trainings.
        name: a score of the task, "loss" for the training loss; None is the score that decides which checkpoint is the
            best, and the training loss for made-up data, on which nothing is evaluated.

    Raises:
        UsageError: the task has no such score, or made-up data cannot be evaluated.
    """
    made_up = is_synthetic(settings.data)
    if name == TRAINING_LOSS or (name is None and made_up):
        return Objective(name=TRAINING_LOSS, maximize=False)
    from bert.tasks.base import check_objective, deciding

    known = make_task(settings.task, settings.task_options)
    chosen = known.deciding_score if name is None else name
    check_objective(known, chosen, TRAINING_LOSS)
    if made_up:
        raise UsageError(
            "option-not-applicable",
            f"--objective {chosen}: made-up data are not evaluated: give real --data, or --objective loss",
        )
    _, maximize = deciding(known, chosen)
    return Objective(name=chosen, maximize=maximize, best_by=None if chosen == known.deciding_score else chosen)


def _loss_readings(run: TrainRun, total_steps: int) -> list[float | None]:
    parts = min(_PARTS, total_steps)
    losses: dict[int, list[float | None]] = {}
    last = 0
    for row in run.read_curve():
        last = max(last, row["applied_steps"])
        losses.setdefault(_part(row["applied_steps"], parts, total_steps), []).append(row["loss"])
    # A part that is not over yet is no reading.
    ended = [part for part in sorted(losses) if last * parts >= (part + 1) * total_steps]
    return [_mean(losses[part]) for part in ended]


def _part(applied_steps: int, parts: int, total_steps: int) -> int:
    return min(parts - 1, max(0, (applied_steps - 1) * parts // total_steps))


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None and value == value]
    return sum(known) / len(known) if len(known) == len(values) else None
