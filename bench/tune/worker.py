"""A worker of a study: takes trials, trains them and reports their objective until none are left."""

import contextlib
import shutil
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.machine.devices import Devices
from bench.plan.variants import PlannedVariant, Values, explore
from bench.run.attempt import train_once
from bench.run.processes import StopRequest
from bench.tune.space import SearchSpace, word
from bench.tune.study import ENDED, Begun, Study, trial_folder
from bert.data.lengths import is_synthetic
from bert.tasks import make_task
from bert.train.settings import TrainSettings
from common.errors import BertbenchError, StorageError, UsageError
from common.scores import in_words
from records.run import TrialDirectory
from records.training import TrainRun, read_events

TRAINING_LOSS = "loss"
"""The objective that needs no evaluation: the mean training loss of the last tenth of the steps."""
# Readings of the training loss: means over equal parts of the run.
_PARTS = 10
_LOOK_SECONDS = 0.5
# So many consecutive failures have a common cause.
MOST_FAILURES = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    """A number that a training reports repeatedly."""

    name: str
    """A score of the task's evaluations, or TRAINING_LOSS."""
    maximize: bool
    """Whether higher is better."""
    best_by: str | None = None
    """Score that selects the best checkpoint; None uses the task's default."""

    @property
    def evaluated(self) -> bool:
        """Whether trials must be evaluated."""
        return self.name != TRAINING_LOSS

    def readings(self, run: TrainRun, total_steps: int) -> list[float | None]:
        """Return the readings of a run so far, in order: one number per evaluation, or per tenth of the run.

        Steps repeated after a resume count once. None means not finite.

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
        """Return the final objective: the best evaluation, whose checkpoint is kept, or the last training loss.

        None if there are no readings, or the last one is not finite.
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
        settings: settings of one of its training runs.
        name: a score of the task, or "loss" for the training loss; None is the score that selects the best checkpoint,
            or the training loss for synthetic data, which are not evaluated.
    """
    synthetic = is_synthetic(settings.data)
    if name == TRAINING_LOSS or (name is None and synthetic):
        return Objective(name=TRAINING_LOSS, maximize=False)
    from bert.tasks.base import check_objective, deciding

    known = make_task(settings.task, settings.task_options)
    chosen = known.deciding_score if name is None else name
    check_objective(known, chosen, TRAINING_LOSS)
    if synthetic:
        raise UsageError(
            "option-not-applicable",
            f"--objective {chosen} needs evaluations, but synthetic data are not evaluated: give real --data, or "
            "--objective loss",
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
    # A part that has not ended is not a reading yet.
    ended = [part for part in sorted(losses) if last * parts >= (part + 1) * total_steps]
    return [_mean(losses[part]) for part in ended]


def _part(applied_steps: int, parts: int, total_steps: int) -> int:
    return min(parts - 1, max(0, (applied_steps - 1) * parts // total_steps))


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None and value == value]
    return sum(known) / len(known) if len(known) == len(values) else None


Make = Callable[[Values, Path], tuple[PlannedVariant, list[str]]]
"""(values, folder) -> the training, and the words of `bertbench train` that repeat it, without the folder.

Raises BertbenchError if the values are not valid."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """The task of a worker."""

    study: Study
    space: SearchSpace
    objective: Objective
    make: Make
    devices: Devices
    trials: int | None
    """Trials of the whole study; None for no limit."""
    keep_all: bool
    """Whether to keep the checkpoints of all trials instead of only the best."""


def work(job: Job, stop: StopRequest, tell: Callable[[str], None], ended: Callable[[], None]) -> str:
    """Train trials until the study is complete or a stop is requested; return why it ended.

    Args:
        job: the job.
        stop: checked between and during trials; a stopped trial is saved and can be resumed.
        tell: receives lines about trials.
        ended: called after each trial.

    Raises:
        StorageError: the study or a run directory cannot be written; the trial can be resumed.
        KeyboardInterrupt: interrupted; the trial can be resumed.
    """

    def measure(begun: Begun) -> str:
        try:
            state = _one(job, begun, stop, tell)
        except BaseException:
            with contextlib.suppress(BertbenchError):  # the original error is raised
                job.study.put_back(begun)
            raise
        ended()
        return state

    return explore(_drawn(job), measure, stop.wanted) or f"stopped by {stop.why()}"


def _drawn(job: Job) -> Generator[Begun, str, str]:
    """Yield trials and receive the state of each; return why there are no more."""
    failures = 0
    while (begun := job.study.begin(job.space, job.trials)) is not None:
        state = yield begun
        failures = failures + 1 if state == "failed" else 0
        if failures >= MOST_FAILURES:
            return f"{failures} trials failed in a row"
    return "every combination was tried" if job.study.tried_all(job.space) else "all trials were started"


def tidy(study: Study) -> None:
    """Remove the checkpoints of ended trials except the best. The caller holds the study's lock."""
    best = study.best()
    for row in study.rows():
        folder = trial_folder(study.folder, row.number) / "checkpoints"
        if row.state in ENDED and (best is None or row.number != best.number):
            shutil.rmtree(folder, ignore_errors=True)


def _one(job: Job, begun: Begun, stop: StopRequest, tell: Callable[[str], None]) -> str:
    """Train a trial; return its state."""
    of = "" if job.trials is None else f" (0 to {job.trials - 1})"
    head = f"trial {begun.number}{of}: {values_text(begun.values)}"
    same = job.study.known(begun)
    if same is not None:
        job.study.take_over(begun, same)
        tell(f"{head}: same values as trial {same.number}, result reused")
        return same.state
    tell(head)
    try:
        training, words = job.make(begun.values, begun.folder)
    except StorageError:
        raise
    except BertbenchError as error:
        return _failed(job, begun, f"refused: {error}", tell)
    begun.note_words(tuple(words))
    follower = _Follower(begun, job, training, stop, tell)
    result: Mapping[str, Any] = {"status": "ok", "outcome": {"finished": True}}
    if not training.finished:  # a worker may have died before it reported the end
        _, result = train_once(training.run, training.plan, job.devices, follower)
    follower.read()
    state = _ended(job, begun, follower, result, stop, tell)
    if state != "waiting" and not job.keep_all:
        with job.study.locked():
            tidy(job.study)
    return state


def _ended(
    job: Job,
    begun: Begun,
    follower: "_Follower",
    result: Mapping[str, Any],
    stop: StopRequest,
    tell: Callable[[str], None],
) -> str:
    status, outcome = str(result["status"]), dict(result.get("outcome") or {})
    if status != "ok":
        return _failed(job, begun, f"{status}: {result.get('reason') or 'no reason given'}", tell)
    if not outcome.get("finished"):
        if follower.pruned:
            job.study.prune(begun)
            tell(f"    pruned after reading {len(follower.readings)}")
            return "pruned"
        if stop.wanted():
            job.study.put_back(begun)
            tell("    stopped and saved; run the same command to resume")
            return "waiting"
        return _failed(job, begun, "its processes were stopped by a signal", tell)
    value = job.objective.result(follower.readings)
    if value is None:
        why = (
            f"its last {job.objective.name} is not finite"
            if follower.readings
            else f"no {job.objective.name} was found"
        )
        return _failed(job, begun, why, tell)
    job.study.complete(begun, value)
    tell(f"    complete: {in_words(job.objective.name, value)}")
    return "complete"


def _failed(job: Job, begun: Begun, reason: str, tell: Callable[[str], None]) -> str:
    job.study.fail(begun, reason)
    tell(f"    failed: {reason}")
    return "failed"


def values_text(values: Values) -> str:
    """Return values as text: `learning_rate 3.16e-05, micro_batch_size 8`."""
    shown = {name: f"{value:.4g}" if isinstance(value, float) else word(value) for name, value in values.items()}
    return ", ".join(f"{name} {text}" for name, text in shown.items())


class _Follower:
    """Watches the launch of a trial's training and reports its readings to the study."""

    def __init__(
        self, begun: Begun, job: Job, training: PlannedVariant, stop: StopRequest, tell: Callable[[str], None]
    ) -> None:
        self._begun = begun
        self._objective = job.objective
        self._training = training
        self._stop = stop
        self._tell = tell
        self._next_look = 0.0
        self._told = 0
        self.readings: list[float | None] = []
        self.pruned = False

    def begin(self, directory: TrialDirectory) -> None:
        """Do nothing: there are no readings yet."""

    def stop_wanted(self) -> bool:
        """Whether the ranks must save and stop."""
        return self.pruned or self._stop.wanted()

    def look(self) -> None:
        """Report new readings, at most every half second."""
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK_SECONDS
            self.read()

    def read(self) -> None:
        """Report new readings now."""
        self.readings = self._objective.readings(self._training.run, self._training.plan.settings.steps)
        for number, value in enumerate(self.readings[self._told :], start=self._told):
            self._told = number + 1
            if value is not None:
                self._tell(f"    reading {number + 1}: {in_words(self._objective.name, value)}")
                self.pruned = self._begun.report(number, value) or self.pruned
