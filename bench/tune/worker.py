"""One worker of a study: takes a trial, trains it, tells the study, until there is nothing left to do."""

import contextlib
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.machine.devices import Devices
from bench.run.attempt import train_once
from bench.run.stop import StopRequest
from bench.run.trainer import Plan
from bench.tune.objective import Objective
from bench.tune.question import ENDED
from bench.tune.space import SearchSpace, Value, word
from bench.tune.storage import trial_folder
from bench.tune.study import Begun, Study
from common.errors import BertbenchError, StorageError
from common.scores import in_words
from records.run import TrialDirectory
from records.training import TrainRun

_LOOK_SECONDS = 0.5
# So many failures one after the other have one cause.
MOST_FAILURES = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialTraining:
    """The training of a trial, looked at before it runs."""

    plan: Plan
    run: TrainRun
    """Where."""
    request: Mapping[str, Any]
    """The options of `bertbench train` that come to the same."""
    words: tuple[str, ...]
    """These options as words, without the folder."""
    threads: int | None
    """CPU threads per process; None is an equal share."""


Make = Callable[[Mapping[str, Value], Path], TrialTraining]
"""(values, folder) -> its training. Raises BertbenchError where there is none with these values."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What a worker is told."""

    study: Study
    space: SearchSpace
    objective: Objective
    make: Make
    devices: Devices
    trials: int | None
    """Trials of the whole study; None has no end."""
    keep_all: bool
    """Whether the checkpoints of all trials stay, instead of those of the best."""


def work(job: Job, stop: StopRequest, tell: Callable[[str], None], ended: Callable[[], None]) -> str:
    """Train trials until the study has as many as it is to have, or a stop is asked for; return why it ended.

    Args:
        job: what to do.
        stop: asked between and in trials; a trial that is stopped has saved, and waits to be gone on with.
        tell: takes lines about trials.
        ended: called after each trial.

    Raises:
        StorageError: the study or a run directory cannot be written; the trial waits.
        KeyboardInterrupt: ended at once; the trial waits.
    """
    failures = 0
    while not stop.wanted():
        begun = job.study.begin(job.space, job.trials)
        if begun is None:
            return "every combination was tried" if job.study.tried_all(job.space) else "all trials were begun"
        try:
            state = _one(job, begun, stop, tell)
        except BaseException:
            with contextlib.suppress(BertbenchError):  # the error that is on its way says it
                job.study.put_back(begun)
            raise
        failures = failures + 1 if state == "failed" else 0
        ended()
        if failures >= MOST_FAILURES:
            return f"{failures} trials failed one after the other"
    return f"stopped by {stop.why()}"


def tidy(study: Study) -> None:
    """Remove the checkpoints of trials that ended, the best one's apart; called inside the study's lock.

    Raises:
        StorageError: the storage cannot be read.
    """
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
        tell(f"{head}: the values of trial {same.number}, not trained again")
        return same.state
    tell(head)
    try:
        training = job.make(begun.values, begun.folder)
    except StorageError:
        raise
    except BertbenchError as error:
        return _failed(job, begun, f"refused: {error}", tell)
    begun.note_words(training.words)
    follower = _Follower(begun, job, training, stop, tell)
    result: Mapping[str, Any] = {"status": "ok", "outcome": {"finished": True}}
    if not (training.run.read_state() or {}).get("finished"):  # a worker may have died before it could tell
        _, result = train_once(training.run, training.plan, job.devices, training.request, follower, training.threads)
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
        return _failed(job, begun, f"{status}: {result.get('reason') or 'no reason was given'}", tell)
    if not outcome.get("finished"):
        if follower.pruned:
            job.study.prune(begun)
            tell(f"    pruned after reading {len(follower.readings)}")
            return "pruned"
        if stop.wanted():
            job.study.put_back(begun)
            tell("    stopped and saved; the next call goes on with it")
            return "waiting"
        return _failed(job, begun, "its processes were told to stop by a signal", tell)
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
    tell(f"    failed, {reason}")
    return "failed"


def values_text(values: Mapping[str, Value]) -> str:
    """Return values in a few words: "learning_rate 3.16e-05, micro_batch_size 8"."""
    shown = {name: f"{value:.4g}" if isinstance(value, float) else word(value) for name, value in values.items()}
    return ", ".join(f"{name} {text}" for name, text in shown.items())


class _Follower:
    """Reads what a trial's training tells while it runs, and hands it to the study; the watcher of its launch."""

    def __init__(
        self, begun: Begun, job: Job, training: TrialTraining, stop: StopRequest, tell: Callable[[str], None]
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
        """Nothing is to be done before there are readings."""

    def stop_wanted(self) -> bool:
        """Whether the ranks are to save and end."""
        return self.pruned or self._stop.wanted()

    def look(self) -> None:
        """Hand on what is new."""
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK_SECONDS
            self.read()

    def read(self) -> None:
        """Hand on what is new, now."""
        self.readings = self._objective.readings(self._training.run, self._training.plan.settings.steps)
        for number, value in enumerate(self.readings[self._told :], start=self._told):
            self._told = number + 1
            if value is not None:
                self._tell(f"    reading {number + 1}: {in_words(self._objective.name, value)}")
                self.pruned = self._begun.report(number, value) or self.pruned
