"""The search for the training options with the best score: Optuna draws values, a training tries them."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.machine.devices import Devices
from bench.run.attempt import train_once
from bench.run.processes import StopRequest
from bench.search.objective import Follower, Objective
from bench.search.space import Parameter, option_words
from bench.search.study import GRACE_SECONDS, HEARTBEAT_SECONDS, import_optuna, put_back, trial_run, trials_of
from bench.sweep.training import Plan, TrainOptions, Values, plan_training
from common import locks
from common.errors import BertbenchError, StorageError
from common.scores import in_words
from records.training import TrainRun

# Evaluations of a trial without --eval-every; pruning needs several.
_EVALUATIONS = 5


class TrialError(Exception):
    """A trial has no result."""


def plan_trial(
    base: TrainOptions, values: Values, folder: Path, devices: Devices, best_by: str | None = None
) -> tuple[Plan, Values]:
    """Return the training of a trial, and its options besides those that all trials share.

    Args:
        base: options common to all trials.
        values: those of the trial.
        folder: its run directory.
        devices: where it trains.
        best_by: score that selects the best checkpoint; None uses the task's own.

    Raises:
        BertbenchError: the values are not valid.
    """
    own: dict[str, Any] = dict(values)
    # One checkpoint besides the best is enough to resume.
    plan = plan_training(base.having(own, out=folder, keep=base.keep or 1), devices)
    if plan.settings.eval_every == 0:
        own["eval_every"] = math.ceil(plan.settings.steps / _EVALUATIONS)
    if best_by is not None:
        own["best_by"] = best_by
    return plan_training(base.having(own, out=folder, keep=base.keep or 1), devices), own


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker:
    """A process that takes trials of a study, trains them and reports their scores."""

    study: Any
    folder: Path
    space: Mapping[str, Parameter]
    objective: Objective
    base: TrainOptions
    """Options common to all trials."""
    words: Sequence[str]
    """`base` as words of the command line, the task first."""
    devices: Devices
    trials: int
    """Trials in the whole study; workers that end at the same time may add some."""
    sampler: str
    stop: StopRequest
    tell: Callable[[str], None]
    """Receives lines about trials."""
    write: Callable[[], Mapping[str, Any]]
    """Writes the results; called after each trial."""

    def run(self) -> str:
        """Train trials until the study is complete or a stop is requested; return why it ended.

        Raises:
            StorageError: the study or a run directory cannot be written; the trial can be resumed.
            KeyboardInterrupt: interrupted; the trial can be resumed.
        """
        ends = time.monotonic() + HEARTBEAT_SECONDS + GRACE_SECONDS
        while not self.stop.wanted():
            import_optuna().storages.fail_stale_trials(self.study)
            if not self._complete():
                self.study.optimize(self._try, catch=(TrialError,), callbacks=[self._after])
            elif time.monotonic() < ends and "RUNNING" in self._states():
                time.sleep(1)  # the worker of a running trial may have been killed
            else:
                return "all trials were started"
        return f"stopped by {self.stop.why()}"

    def _states(self) -> set[str]:
        return {trial.state.name for trial in trials_of(self.study).values()}

    def _complete(self) -> bool:
        """Whether there is no trial to be begun."""
        return len(trials_of(self.study)) >= self.trials and "WAITING" not in self._states()

    def _after(self, study: Any, frozen: Any) -> None:
        self.write()
        if self.stop.wanted() or self._complete():
            study.stop()

    def _try(self, trial: Any) -> float:
        """Return the score of a trial."""
        samplers = import_optuna().samplers
        sampler = samplers.RandomSampler if self.sampler == "random" else samplers.TPESampler
        self.study.sampler = sampler(seed=trial.number)  # workers draw different values, and a resumed study the same
        values = {name: parameter.suggest(trial) for name, parameter in self.space.items()}
        trials = trials_of(self.study)
        number = next(first for first, last in trials.items() if last.number == trial.number)
        self.tell(f"trial {number}: {', '.join(f'{name} {value}' for name, value in values.items())}")
        for first, other in trials.items():
            if other.state.name == "COMPLETE" and other.params == values:
                self.tell(f"    same values as trial {first}, result reused")
                trial.set_user_attr("same_as", first)
                return float(other.value)
        run = trial_run(self.folder, number)
        try:
            with locks.locked(run.path, "another worker", "wait for it", wait=True):
                return self._train(trial, values, run)
        except (StorageError, KeyboardInterrupt):
            put_back(self.study, trial.number)
            raise

    def _train(self, trial: Any, values: Values, run: TrainRun) -> float:
        try:
            plan, own = plan_trial(self.base, values, run.path, self.devices, self.objective.best_by)
        except StorageError:
            raise
        except BertbenchError as error:
            raise self._failed(trial, f"refused: {error}") from error
        trial.set_user_attr("words", [*self.words, *option_words(own)])
        follower = Follower(trial=trial, objective=self.objective, run=run, stop=self.stop, tell=self.tell)
        result: Mapping[str, Any] = {"status": "ok", "outcome": {"finished": True}}
        if not (run.read_state() or {}).get("finished"):  # a worker may have been killed after the training
            _, result = train_once(run, plan, self.devices, follower)
        follower.read()
        if result["status"] != "ok":
            raise self._failed(trial, f"{result['status']}: {result.get('reason') or 'no reason given'}")
        if not (result.get("outcome") or {}).get("finished"):
            raise self._unfinished(trial, follower)
        value = self.objective.result(follower.readings)
        if math.isnan(value):
            raise self._failed(trial, f"its last {self.objective.name} is not finite")
        self.tell(f"    complete: {in_words(self.objective.name, value)}")
        return value

    def _unfinished(self, trial: Any, follower: Follower) -> Exception:
        """Return what ends a trial whose training was stopped."""
        if follower.pruned:
            self.tell(f"    pruned after evaluation {len(follower.readings)}")
            pruned: Exception = import_optuna().TrialPruned()
            return pruned
        if not self.stop.wanted():
            return self._failed(trial, "its processes were stopped by a signal")
        self.tell("    stopped and saved; run the same command to resume")
        put_back(self.study, trial.number)
        return TrialError()

    def _failed(self, trial: Any, reason: str) -> TrialError:
        self.tell(f"    failed: {reason}")
        trial.set_user_attr("reason", reason)
        return TrialError(reason)
