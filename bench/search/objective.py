"""The score that a study optimizes, read from the evaluations of a training while it runs."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bench.run.processes import StopRequest
from bert.data.lengths import is_synthetic
from bert.tasks import make_task
from bert.train.settings import TrainSettings
from common.errors import UsageError
from common.scores import in_words
from records.run import TrialDirectory
from records.training import TrainRun, read_events
from records.trial import Trial

_LOOK_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    """A score that the evaluations of a training report."""

    name: str
    maximize: bool
    best_by: str | None
    """`name`, if the best checkpoint must be selected by it; None if the task does that anyway."""

    def readings(self, run: TrainRun) -> list[float]:
        """Return the score of each evaluation so far, those repeated after a resume once; NaN is not finite."""
        values = {
            event["applied_steps"]: math.nan if event.get(self.name) is None else event[self.name]
            for directory in run.attempts()
            for event in read_events(directory)
            if event["event"] == "evaluated"
        }
        return [values[step] for step in sorted(values)]

    def result(self, readings: list[float]) -> float:
        """Return the best evaluation, whose checkpoint is kept; NaN if there is none or the last one is NaN."""
        if not readings or math.isnan(readings[-1]):
            return math.nan
        known = [value for value in readings if not math.isnan(value)]
        return max(known) if self.maximize else min(known)


def make_objective(settings: TrainSettings, name: str | None) -> Objective:
    """Return the objective of a search; `name` is a score of the task, None the one that selects its checkpoints."""
    from bert.tasks.base import deciding

    if is_synthetic(settings.data):
        raise UsageError(
            "option-not-applicable", f"--data {settings.data} is not evaluated: a search for a score needs real data"
        )
    task = make_task(settings.task, settings.task_options)
    score, maximize = deciding(task, name)
    return Objective(name=score, maximize=maximize, best_by=None if score == task.deciding_score else score)


@dataclass(kw_only=True, slots=True)
class Follower:
    """Watches the training of a trial, reports its evaluations to Optuna, and has it stop when Optuna prunes it."""

    trial: Any
    objective: Objective
    run: TrainRun
    stop: StopRequest
    tell: Callable[[str], None]
    readings: list[float] = field(default_factory=list)
    pruned: bool = False
    next_look: float = 0.0

    def stop_wanted(self) -> bool:
        """Whether the ranks must save and stop."""
        return self.pruned or self.stop.wanted()

    def look(self, trial: Trial, directory: TrialDirectory) -> None:
        """Report new evaluations, at most every half second."""
        if time.monotonic() >= self.next_look:
            self.next_look = time.monotonic() + _LOOK_SECONDS
            self.read()

    def read(self) -> None:
        """Report new evaluations now."""
        reported = len(self.readings)
        self.readings = self.objective.readings(self.run)
        for number, value in enumerate(self.readings[reported:], start=reported):
            self.tell(f"    evaluation {number + 1}: {in_words(self.objective.name, value)}")
            self.trial.report(value, number)
            self.pruned = self.pruned or self.trial.should_prune()
