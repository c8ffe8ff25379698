"""The search for the training options with the best score: Optuna draws values, a training tries them.

    STUDY/study.db       Optuna's storage, which several workers share
    STUDY/trial-0000/    the run directory of a trial and of the trials that continue it
    STUDY/tune.json      results; trials.csv is Optuna's own table
    STUDY/best.json      the best trial and the command that repeats it

A worker writes a heartbeat while a trial runs. Optuna fails a trial whose heartbeat has stopped and queues another
one with the same values, which resumes the training from its last checkpoint.
"""

import contextlib
import functools
import math
import shlex
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.machine.devices import Devices
from bench.run.processes import StopRequest
from bench.sweep.options import check_same_request, request_of
from bench.sweep.training import Plan, TrainOptions, plan_training, train_once
from bert.data.synthetic import is_synthetic
from bert.tasks import make_task
from bert.tasks.base import deciding
from common import locks
from common.atomic import write_text
from common.errors import InputError, StorageError, UsageError, first_line
from common.flags import flag
from common.scores import in_words, score
from common.tools import need
from records.files import write_record
from records.run import TrialDirectory
from records.training import TrainRun, read_events
from records.trial import Trial

# Options of a training that may change between calls of one search.
FREE = ("out", "json", "threads", "max_seconds", "log_to", "log_every", "save_every", "keep", "device", "file",
        "logfile", "vary", "seeds", "until", "profile_steps", "price_per_hour")  # fmt: skip
# Further options that cannot be searched: they define the comparison.
FIXED = ("task", "benchmark_task", "phase", "devices", "eval_every", "eval_data", "eval_samples", "best_by",
         "deepspeed_config")  # fmt: skip
FORMS = "NAME=VALUE,VALUE or NAME=LOW:HIGH or NAME=log:LOW:HIGH"
Value = bool | int | float | str
Values = Mapping[str, Value]
"""Options of `bertbench train`, by name."""
Read = Callable[[Sequence[str]], TrainOptions]
"""Returns the options of a training with further words on its command line. Raises UsageError."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One option to search, a field of the options of `bertbench train`."""

    name: str
    text: str
    """The values as given."""
    values: tuple[Value, ...]
    """The values; of a range the lowest and the highest."""
    is_range: bool
    log: bool
    """Whether values of a range are drawn evenly on a logarithmic scale."""

    def suggest(self, trial: Any) -> Value:
        """Return the value that Optuna suggests for a trial."""
        if not self.is_range:
            choice: Value = trial.suggest_categorical(self.name, self.values)
            return choice
        suggest = trial.suggest_int if isinstance(self.values[0], int) else trial.suggest_float
        number: Value = suggest(self.name, *self.values, log=self.log)
        return number


def read_space(words: Sequence[str], read: Read) -> dict[str, Parameter]:
    """Return the options to search by name, from the words of --search. Raises UsageError."""
    space: dict[str, Parameter] = {}
    for word in words:
        name, _, text = word.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        if name in (*space, *FREE, *FIXED):
            raise UsageError("option-conflict", f"{name} cannot be searched, or is given twice: leave it out")
        space[name] = _parameter(name, text.strip(), read)
    return space


def option_words(values: Values) -> list[str]:
    """Return values as options of `bertbench train`."""
    words: list[str] = []
    for name, value in values.items():
        if isinstance(value, bool):
            words.append(flag(name) if value else f"{flag(name)}=false")
        else:
            words += [flag(name), str(value)]
    return words


def _parameter(name: str, text: str, read: Read) -> Parameter:
    log = text.startswith("log:")
    parts = text.removeprefix("log:").split(":")
    is_range = len(parts) > 1 or log
    texts = parts if is_range else text.split(",")
    values = tuple(read([f"{flag(name)}={part.strip()}"]).value(name) for part in texts)
    if is_range:
        numbers = [float(value) for value in values if isinstance(value, int | float)]
        valid = len(values) == len(numbers) == 2 and (0 if log else -math.inf) < numbers[0] < numbers[1] < math.inf
    else:
        valid = 1 < len(values) == len(set(values)) and "" not in values
    if not valid:
        raise UsageError(
            "option-value", f"{name}={text}: give {FORMS}, at least two values, or LOW below HIGH, for log above 0"
        )
    return Parameter(name, text, values, is_range, log)


# Evaluations of a trial without --eval-every; pruning needs several.
_EVALUATIONS = 5
_LOOK_SECONDS = 0.5
# Time between two heartbeats of a trial, and until one without a heartbeat is lost.
_HEARTBEAT_SECONDS, _GRACE_SECONDS = 10, 60
# Also of trials that were stopped and queued again.
_RETRIES = 20
_STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "waiting"}
_locked = functools.partial(locks.locked, holder="another worker", remedy="wait for it", wait=True)


class TrialError(Exception):
    """A trial has no result, for this reason."""


class StoppedError(Exception):
    """A trial was stopped and can be resumed."""


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
    read: Read
    words: list[str]
    """`base` as words of the command line, the task first."""
    devices: Devices
    trials: int
    """Trials in the whole study; workers that end at the same time may add some."""
    sampler: str
    pruner: str
    stop: StopRequest
    note: Callable[[str], None]
    """Called with lines about trials."""
    further: list[str] = field(default_factory=list)
    """Words that all trials have besides: how often to evaluate, unless it is given."""
    study: Any = None
    objective: str = ""
    """The score to optimize: --best-by, or that of the task."""
    about: dict[str, Any] = field(default_factory=dict)
    """Task, space, training and objective, for tune.json."""

    def run(self) -> tuple[dict[str, Any], str]:
        """Train trials until the study is complete or a stop is requested; return tune.json and why it ended."""
        need("tune --for score", "tune", "optuna")
        from optuna.storages import fail_stale_trials

        settings = self._plan({}, self.folder).settings
        if is_synthetic(settings.data):
            raise UsageError("option-not-applicable", f"--data {settings.data} is not evaluated: give real data")
        given = {**request_of(self.base), "data": self.base.data or self.base.file}
        given |= given.pop("task_flags")
        training = {name: value for name, value in given.items() if name not in (*FREE, *self.space)}
        space = {name: one.text for name, one in self.space.items()}
        self.objective, maximize = deciding(make_task(settings.task, settings.task_options), self.base.best_by)
        request = {**training, "objective": self.objective, "search": space}
        objective = {"name": self.objective, "label": score(self.objective).label, "maximize": maximize}
        self.about = {"task": self.base.task, "space": space, "training": training, "objective": objective}
        if settings.eval_every == 0:
            self.further = [f"--eval-every={math.ceil(settings.steps / _EVALUATIONS)}"]
        with _open_study(self.folder, request, maximize, self.pruner) as self.study:
            # The worker of a running trial may have been killed; later its heartbeat shows that.
            lost = time.monotonic() + _HEARTBEAT_SECONDS + _GRACE_SECONDS
            while not self.stop.wanted():
                fail_stale_trials(self.study)
                if not self._complete():
                    self.study.optimize(self._try, catch=(TrialError, StoppedError), callbacks=[self._after])
                elif "RUNNING" in self._states() and time.monotonic() < lost:
                    time.sleep(1)
                else:
                    break
            document = self._write_results()
        return document, f"stopped by {self.stop.why()}" if self.stop.wanted() else "all trials were started"

    def _plan(self, values: Values, folder: Path) -> Plan:
        options = self.read([*self.further, *option_words(values)])
        # One checkpoint is enough to resume, besides the best one.
        return plan_training(replace(options, out=folder, keep=options.keep or 1), self.devices)

    def _trials(self) -> dict[int, Any]:
        """Return the trials by number; of those that continue one another the last, by the number of the first."""
        trials = self.study.get_trials(deepcopy=False)
        return {trial.system_attrs.get("failed_trial", trial.number): trial for trial in trials}

    def _states(self) -> list[str]:
        return [trial.state.name for trial in self._trials().values()]

    def _complete(self) -> bool:
        """Whether there is no trial to be begun."""
        return len(self._states()) >= self.trials and "WAITING" not in self._states()

    def _after(self, study: Any, _: Any) -> None:
        self._write_results()
        if self.stop.wanted() or self._complete():
            study.stop()

    def _try(self, trial: Any) -> float:
        """Return the score of a trial."""
        from optuna.samplers import RandomSampler, TPESampler
        from optuna.storages import RetryHeartbeatStaleTrialCallback

        sampler = RandomSampler if self.sampler == "random" else TPESampler
        self.study.sampler = sampler(seed=trial.number)  # workers draw different values, and a resumed study the same
        values = {name: parameter.suggest(trial) for name, parameter in self.space.items()}
        trials = self._trials()
        number = next(first for first, last in trials.items() if last.number == trial.number)
        self.note(f"trial {number}: {', '.join(f'{name} {value}' for name, value in values.items())}")
        for first, other in trials.items():
            if other.state.name == "COMPLETE" and other.params == values:
                self.note(f"    same values as trial {first}, result reused")
                trial.set_user_attr("same_as", first)
                return float(other.value)
        run = TrainRun(self.folder / _folder(number))
        try:
            with _locked(run.path):
                value = self._train(trial, values, run)
        except TrialError as error:
            self.note(f"    failed: {error}")
            trial.set_user_attr("reason", str(error))
            raise
        except (StoppedError, StorageError, KeyboardInterrupt):  # the next worker continues it
            RetryHeartbeatStaleTrialCallback()(self.study, self.study.get_trials()[trial.number])
            raise
        self.note(f"    complete: {in_words(self.objective, value)}")
        return value

    def _train(self, trial: Any, values: Values, run: TrainRun) -> float:
        from optuna import TrialPruned

        try:
            plan = self._plan(values, run.path)
        except (UsageError, InputError) as error:
            raise TrialError(f"refused: {error}") from error
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
        return max(known) if self.about["objective"]["maximize"] else min(known)

    def _write_results(self) -> dict[str, Any]:
        """Write the files of the study, remove the checkpoints of trials that are not the best, return tune.json."""
        with _locked(self.folder):
            rows = [_row(number, trial) for number, trial in self._trials().items()]
            trained = [row for row in rows if row["state"] == "complete" and row["same_as"] is None]
            choose = max if self.about["objective"]["maximize"] else min
            best = choose(trained, key=lambda row: row["value"], default=None)
            for row in rows:
                ended = row["state"] in ("complete", "pruned") or row["reason"]  # others may resume
                if ended and row is not best:
                    shutil.rmtree(TrainRun(self.folder / row["folder"]).checkpoints, ignore_errors=True)
            document = {**self.about, "trials": rows, "best": best and self._with_command(best)}
            write_text(self.folder / "trials.csv", self.study.trials_dataframe().to_csv(index=False))
            write_record(self.folder / "tune.json", document)
            if document["best"] is not None:
                write_record(self.folder / "best.json", document["best"])
        return document

    def _with_command(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the row of a trial with the command that repeats it and its checkpoint."""
        out = str(self.folder.with_name(f"{self.folder.name}-best"))
        words = ["bertbench", "train", *self.words, *self.further, *option_words(row["values"]), "--out", out]
        checkpoint = TrainRun(self.folder / row["folder"]).best_checkpoint()
        return {**row, "command": shlex.join(words), "checkpoint": None if checkpoint is None else str(checkpoint)}


def _folder(number: int) -> str:
    return f"trial-{number:04d}"


def _row(number: int, trial: Any) -> dict[str, Any]:
    return {
        "number": number,
        "state": _STATES[trial.state.name],
        "value": trial.value,
        "values": dict(trial.params),
        "readings": [[step, value if value == value else None] for step, value in trial.intermediate_values.items()],
        "seconds": trial.duration.total_seconds() if trial.duration else None,
        "reason": trial.user_attrs.get("reason", ""),
        "resumed": len(trial.system_attrs.get("retry_history", ())),
        "same_as": trial.user_attrs.get("same_as"),
        "folder": _folder(number),
    }


@contextlib.contextmanager
def _open_study(folder: Path, request: Mapping[str, Any], maximize: bool, pruner: str) -> Iterator[Any]:
    """Open the Optuna study in a folder, created if missing; failures of its storage are a StorageError."""
    import optuna
    from optuna.exceptions import ExperimentalWarning, StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=ExperimentalWarning)
    pruners = optuna.pruners
    try:
        with _locked(folder):
            storage = optuna.storages.RDBStorage(
                f"sqlite:///{folder / 'study.db'}",
                engine_kwargs={"connect_args": {"timeout": 120}},  # in s, for slow file systems
                heartbeat_interval=_HEARTBEAT_SECONDS,
                grace_period=_GRACE_SECONDS,
                heartbeat_stale_trial_callback=optuna.storages.RetryHeartbeatStaleTrialCallback(_RETRIES),
            )
            study = optuna.create_study(
                storage=storage,
                study_name="bertbench",
                direction="maximize" if maximize else "minimize",
                pruner=pruners.NopPruner() if pruner == "none" else pruners.MedianPruner(n_warmup_steps=1),
                load_if_exists=True,
            )
            check_same_request(folder, study.user_attrs.get("request", {}), request)
            study.set_user_attr("request", dict(request))
        yield study
    except (StorageInternalError, SQLAlchemyError) as error:
        reason = first_line(error.__cause__ or error)
        problem = f"{folder / 'study.db'} cannot be used ({reason}): repair it, or give another --out"
        raise StorageError("write-failed", problem) from error
