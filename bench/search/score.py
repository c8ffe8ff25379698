"""The search for the training options with the best score: Optuna draws values, a training tries them."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.machine.devices import Devices
from bench.run.attempt import train_once
from bench.run.processes import StopRequest
from bench.search.space import FREE, Parameter, option_words
from bench.search.study import LOST_SECONDS, open_study, put_back, trial_run, trials_of, write_results
from bench.sweep.training import Plan, TrainOptions, Values, plan_training
from bert.data.lengths import is_synthetic
from bert.tasks import make_task
from bert.tasks.base import deciding
from common import locks
from common.errors import InputError, StorageError, UsageError
from common.flags import request_of
from common.packages import need
from common.scores import in_words
from records.run import TrialDirectory
from records.training import TrainRun, read_events
from records.trial import Trial

# Evaluations of a trial without --eval-every; pruning needs several.
_EVALUATIONS = 5
_LOOK_SECONDS = 0.5


class TrialError(Exception):
    """A trial has no result, for this reason."""


class StoppedError(Exception):
    """A trial was stopped and can be resumed."""


def plan_trial(base: TrainOptions, values: Values, folder: Path, devices: Devices) -> tuple[Plan, Values]:
    """Return the training of a trial in a folder, and its options besides those that all trials share.

    Raises:
        BertbenchError: the values are not valid.
    """
    base = base.having({}, out=folder, keep=base.keep or 1)  # enough to resume; the best one is kept besides
    settings = plan_training(base.having(values, best_by=None), devices).settings
    if settings.eval_every == 0:
        values = {**values, "eval_every": math.ceil(settings.steps / _EVALUATIONS)}
    return plan_training(base.having(values), devices), values


@dataclass(kw_only=True, slots=True)
class _Follower:
    """Watches the training of a trial, reports its evaluations to Optuna, and has it stop when Optuna prunes it."""

    trial: Any
    objective: str
    run: TrainRun
    stop: StopRequest
    note: Callable[[str], None]
    values: list[float] = field(default_factory=list)
    """The objective of each evaluation; NaN if it was not finite."""
    pruned: bool = False
    next_look: float = 0.0

    def stop_wanted(self) -> bool:
        return self.pruned or self.stop.wanted()

    def look(self, trial: Trial, directory: TrialDirectory) -> None:
        if time.monotonic() >= self.next_look:
            self.next_look = time.monotonic() + _LOOK_SECONDS
            self.read()

    def read(self) -> None:
        """Report new evaluations; those that a resumed training repeats count once."""
        events = [event for directory in self.run.attempts() for event in read_events(directory)]
        scores = {one["applied_steps"]: one.get(self.objective) for one in events if one["event"] == "evaluated"}
        values = [math.nan if value is None else value for _, value in sorted(scores.items())]
        for number, value in list(enumerate(values))[len(self.values) :]:
            self.note(f"    evaluation {number + 1}: {in_words(self.objective, value)}")
            self.trial.report(value, number)
            self.pruned = self.pruned or self.trial.should_prune()
        self.values = values


@dataclass(kw_only=True, slots=True)
class Worker:
    """A process that takes trials of a study and trains them."""

    folder: Path
    space: Mapping[str, Parameter]
    base: TrainOptions
    """Options common to all trials."""
    words: Sequence[str]
    """`base` as words of the command line, the task first."""
    devices: Devices
    trials: int
    """Trials in the whole study; workers that end at the same time may add some."""
    sampler: str
    pruner: str
    stop: StopRequest
    note: Callable[[str], None]
    """Called with lines about trials."""
    study: Any = None
    objective: str = ""
    """The score to optimize: --best-by, or that of the task."""

    def run(self) -> tuple[dict[str, Any], str]:
        """Train trials until the study is complete or a stop is requested; return tune.json and why it ended.

        Raises:
            UsageError: nothing can be trained with the common options, or nothing is evaluated.
            StorageError: the study or a run directory cannot be written; the trial can be resumed.
            KeyboardInterrupt: interrupted; the trial can be resumed.
        """
        need("tune --for score", "tune", "optuna")
        from optuna.storages import fail_stale_trials

        settings = plan_trial(self.base, {}, self.folder, self.devices)[0].settings
        if is_synthetic(settings.data):
            raise UsageError("option-not-applicable", f"--data {settings.data} is not evaluated: give real data")
        self.objective, maximize = deciding(make_task(settings.task, settings.task_options), self.base.best_by)
        given = {**request_of(self.base), "data": self.base.data or self.base.file}
        given |= given.pop("task_flags")
        training = {name: value for name, value in given.items() if name not in (*FREE, *self.space)}
        space = {name: one.text for name, one in self.space.items()}
        about = {"task": self.base.task, "space": space, "training": training}
        request = {**training, "objective": self.objective, "search": space}
        with open_study(self.folder, request, maximize, self.pruner) as self.study:

            def after(study: Any, _: Any) -> None:
                write_results(self.study, self.folder, self.objective, about)
                if self.stop.wanted() or self._complete():
                    study.stop()

            ended = "all trials were started"
            ends = time.monotonic() + LOST_SECONDS
            while not self.stop.wanted():
                fail_stale_trials(self.study)
                if not self._complete():
                    self.study.optimize(self._try, catch=(TrialError, StoppedError), callbacks=[after])
                elif "RUNNING" in self._states() and time.monotonic() < ends:
                    time.sleep(1)  # the worker of a running trial may have been killed
                else:
                    break
            else:
                ended = f"stopped by {self.stop.why()}"
            return write_results(self.study, self.folder, self.objective, about), ended

    def _states(self) -> list[str]:
        return [trial.state.name for trial in trials_of(self.study).values()]

    def _complete(self) -> bool:
        """Whether there is no trial to be begun."""
        return len(self._states()) >= self.trials and "WAITING" not in self._states()

    def _try(self, trial: Any) -> float:
        """Return the score of a trial."""
        from optuna.samplers import RandomSampler, TPESampler

        sampler = RandomSampler if self.sampler == "random" else TPESampler
        self.study.sampler = sampler(seed=trial.number)  # workers draw different values, and a resumed study the same
        values = {name: parameter.suggest(trial) for name, parameter in self.space.items()}
        trials = trials_of(self.study)
        number = next(first for first, last in trials.items() if last.number == trial.number)
        self.note(f"trial {number}: {', '.join(f'{name} {value}' for name, value in values.items())}")
        for first, other in trials.items():
            if other.state.name == "COMPLETE" and other.params == values:
                self.note(f"    same values as trial {first}, result reused")
                trial.set_user_attr("same_as", first)
                return float(other.value)
        run = trial_run(self.folder, number)
        try:
            with locks.locked(run.path, "another worker", "wait for it", wait=True):
                value = self._train(trial, values, run)
        except TrialError as error:
            self.note(f"    failed: {error}")
            trial.set_user_attr("reason", str(error))
            raise
        except (StoppedError, StorageError, KeyboardInterrupt):
            put_back(self.study, trial.number)
            raise
        self.note(f"    complete: {in_words(self.objective, value)}")
        return value

    def _train(self, trial: Any, values: Values, run: TrainRun) -> float:
        from optuna import TrialPruned

        try:
            plan, options = plan_trial(self.base, values, run.path, self.devices)
        except (UsageError, InputError) as error:
            raise TrialError(f"refused: {error}") from error
        trial.set_user_attr("words", [*self.words, *option_words(options)])
        follower = _Follower(trial=trial, objective=self.objective, run=run, stop=self.stop, note=self.note)
        result: Mapping[str, Any] = {"status": "ok", "outcome": {"finished": True}}
        if not run.read_state().finished:  # a worker may have been killed after the training
            _, result = train_once(run, plan, self.devices, follower)
        follower.read()
        if result["status"] != "ok":
            raise TrialError(f"{result['status']}: {result.get('reason')}")
        if not (result.get("outcome") or {}).get("finished"):
            self.note("    pruned" if follower.pruned else "    stopped and saved; run the same command to resume")
            raise TrialPruned() if follower.pruned else StoppedError()
        if not follower.values or math.isnan(follower.values[-1]):
            raise TrialError(f"its last {self.objective} is not finite")
        known = [value for value in follower.values if not math.isnan(value)]
        return max(known) if self.study.direction.name == "MAXIMIZE" else min(known)
