"""An Optuna study in a folder: the next trial, killed trials, and the result of each.

    STUDY/study.db         Optuna's storage: every trial with its values, readings, state and attributes
    STUDY/trial-0000/      the run directory of a trial, locked by the worker that trains it

Several processes can work on one study. A lock on the folder ensures that no trial is drawn or taken over twice. The
kernel releases the lock of a killed worker, so no time limit is needed to tell slow workers from dead ones. A stopped
or killed trial keeps its number; the next worker resumes it from its last checkpoint.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from bench.plan.variants import Value
from bench.tune.space import SearchSpace
from common import locks
from common.errors import Code, InputError, LockedError, MissingToolError, StorageError, UsageError, first_line

State = Literal["complete", "pruned", "failed", "running", "waiting"]
ENDED: tuple[State, ...] = ("complete", "pruned", "failed")
SAMPLERS = ("tpe", "random")
PRUNERS = ("median", "none")
_NAME = "bertbench"
_KEY, _WORDS, _REASON, _KILLED, _SAME = "question", "words", "reason", "killed", "same_as"
_STATES: dict[str, State] = {
    "COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "waiting",
}  # fmt: skip
# Another worker writes for milliseconds; the limit is for slow or stuck file systems.
_BUSY_SECONDS = 120.0
REMEDY = "pip install 'bertbench[tune]'"
# SQLite's messages about damaged content; other errors may be temporary.
_DAMAGED = ("malformed", "not a database", "no such table", "no such column", "file format", "Could not decode")


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """The question of a study; a folder has one."""

    task: str
    objective: str
    """Score or loss to optimize."""
    maximize: bool
    """Whether higher is better."""
    space: Mapping[str, str]
    """The search space, from SearchSpace.texts."""
    training: Mapping[str, Any]
    """The other training options that affect the result, by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """How trials are chosen; may change between calls."""

    sampler: str = "tpe"
    seed: int = 0
    """Seed of the sampler; with one worker the same seed draws the same trials."""
    startup_trials: int = 10
    """Random trials before tpe takes over."""
    pruner: str = "median"
    prune_after: int = 5
    unpruned_readings: int = 1
    """Readings of the objective before a trial can be pruned."""
    retries: int = 2
    """Times a killed trial is resumed before it counts as failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialRow:
    """The record of a trial."""

    number: int
    """From 0."""
    state: State
    value: float | None
    """Its objective; for a pruned trial the last reading."""
    values: Mapping[str, Value]
    """Searched values by name."""
    readings: tuple[tuple[int, float], ...] = ()
    """(number of the reading from 0, objective) while it trained."""
    reason: str = ""
    words: tuple[str, ...] = ()
    """Options of `bertbench train` that repeat the training."""
    killed: int = 0
    same_as: int | None = None
    """The trial with the same values whose result it has."""


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the differences between two questions as text."""
    found = [
        f"{name} {before.get(name)}, not {now[name]}" for name in ("task", "objective") if before.get(name) != now[name]
    ]
    if found:
        return found
    for what in ("space", "training"):
        old, new = dict(before.get(what) or {}), dict(now[what])
        for name in [*new, *(name for name in old if name not in new)]:
            if old.get(name) != new.get(name):
                shown = [repr(side[name]) if name in side else "nothing" for side in (old, new)]
                found.append(f"{'a search of ' if what == 'space' else ''}{name} {shown[0]}, not {shown[1]}")
    return found


class Begun:
    """A trial that this process has locked."""

    def __init__(self, trial: Any, folder: Path, values: Mapping[str, Value], held: ExitStack) -> None:
        self.trial = trial
        self.number = int(trial.number)
        self.folder = folder
        self.values = dict(values)
        self._held = held
        self._reported = {step for step, _ in _readings(trial.study.trials[self.number])}

    def report(self, reading: int, value: float) -> bool:
        """Report a reading of the objective to the study; return whether to prune the trial."""
        if reading not in self._reported:
            with storage_errors(self.folder.parent):
                self.trial.report(value, reading)
            self._reported.add(reading)
        with storage_errors(self.folder.parent):
            return bool(self.trial.should_prune())

    def note_words(self, words: tuple[str, ...]) -> None:
        """Store the options that repeat the training."""
        with storage_errors(self.folder.parent):
            self.trial.set_user_attr(_WORDS, list(words))

    def let_go(self) -> None:
        """Release the lock on its folder."""
        self._held.close()


class Study:
    """The study in a folder, created if missing.

    Raises:
        MissingToolError: Optuna is not installed.
        UsageError: the folder has a study with other settings, or other content.
        InputError: its storage is damaged.
        StorageError: it cannot be written, or another program has locked it.
    """

    def __init__(self, folder: Path, question: Question, search: Search) -> None:
        import_optuna()
        self.folder = folder
        self.question = question
        self._search = search
        with self.locked():
            storage = open_storage(folder)
            with storage_errors(folder):
                self._study = self._load(storage)
            self._storage = storage

    def _load(self, storage: Any) -> Any:
        optuna = import_optuna()
        names = optuna.get_all_study_names(storage)
        if names and names != [_NAME]:
            raise UsageError(
                "record-foreign", f"{storage_path(self.folder)} holds studies of another program: give another --out"
            )
        direction = "maximize" if self.question.maximize else "minimize"
        if names and not self._asks(optuna.load_study(storage=storage, study_name=_NAME)):
            # The process that created it was killed before it wrote the question.
            optuna.delete_study(storage=storage, study_name=_NAME)
        study = optuna.create_study(storage=storage, study_name=_NAME, direction=direction, load_if_exists=True)
        before = study.user_attrs.get(_KEY)
        if before is None:
            study.set_user_attr(_KEY, json.dumps(asdict(self.question)))
        else:
            found = differences(json.loads(before), asdict(self.question))
            if found:
                raise UsageError(
                    "settings-changed",
                    f"{self.folder} holds a study with {'; '.join(found)}: give another --out, or the options of that "
                    "study",
                )
        return study

    def _asks(self, study: Any) -> bool:
        """Whether a study has its question. Raises InputError if it does not but has trials."""
        if _KEY not in study.user_attrs and study.get_trials(deepcopy=False):
            raise InputError(
                "file-damaged",
                f"{storage_path(self.folder)} is damaged: the settings of its study are missing; restore or remove it, "
                "or give another --out",
            )
        return _KEY in study.user_attrs

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Lock the study; other workers wait."""
        return locks.locked(self.folder, "another worker", "wait for it", wait=True)

    def begin(self, space: SearchSpace, most: int | None) -> Begun | None:
        """Return a waiting or a new trial; None if `most` trials exist or every combination was tried.

        Raises:
            StorageError: the storage cannot be written.
        """
        with self.locked(), storage_errors(self.folder), ExitStack() as stack:
            self._take_up_killed()
            trials = self._study.get_trials(deepcopy=False)
            if not any(trial.state.name == "WAITING" for trial in trials):
                if most is not None and len(trials) >= most:
                    return None
                if self.tried_all(space):
                    return None
            self._study.sampler = make_sampler(self._search, len(trials))
            self._study.pruner = make_pruner(self._search)
            trial = self._study.ask()
            folder = trial_folder(self.folder, trial.number)
            stack.enter_context(locks.locked(folder, "another worker", "wait for it", wait=True))
            return Begun(trial, folder, space.suggest(trial), stack.pop_all())

    def tried_all(self, space: SearchSpace) -> bool:
        """Whether every combination has an ended trial."""
        ended = {
            json.dumps(row.values, sort_keys=True) for row in self.rows() if row.state not in ("running", "waiting")
        }
        return space.size is not None and len(ended) >= space.size

    def _take_up_killed(self) -> None:
        """Queue running trials that no process has locked: their workers were killed."""
        from optuna.trial import TrialState

        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            folder = trial_folder(self.folder, trial.number)
            with contextlib.suppress(LockedError), locks.locked(folder, "its worker", "wait for it"):
                killed = int(trial.user_attrs.get(_KILLED, 0)) + 1
                self._storage.set_trial_user_attr(trial._trial_id, _KILLED, killed)
                if killed > self._search.retries:
                    reason = f"its worker was killed {killed} time{'s'[: killed > 1]}"
                    self._storage.set_trial_user_attr(trial._trial_id, _REASON, reason)
                    self._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
                else:
                    self._storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)

    def known(self, begun: Begun) -> TrialRow | None:
        """Return an ended trial with the same values, if any."""
        ended = (row for row in self.rows() if row.state in ENDED)
        return next((row for row in ended if dict(row.values) == begun.values and row.number != begun.number), None)

    def complete(self, begun: Begun, value: float) -> None:
        """End a trial as complete."""
        self._end(begun, "COMPLETE", value=value)

    def prune(self, begun: Begun) -> None:
        """End a trial as pruned; its value is its last reading."""
        self._end(begun, "PRUNED")

    def fail(self, begun: Begun, reason: str) -> None:
        """End a trial as failed."""
        self._end(begun, "FAIL", reason=reason)

    def take_over(self, begun: Begun, row: TrialRow) -> None:
        """Give a trial the result of one with the same values, without training."""
        with storage_errors(self.folder):
            begun.trial.set_user_attr(_SAME, row.number)
            begun.trial.set_user_attr(_WORDS, list(row.words))
        for reading, value in row.readings:
            begun.report(reading, value)
        state = {"complete": "COMPLETE", "pruned": "PRUNED"}.get(row.state, "FAIL")
        self._end(begun, state, value=row.value if state == "COMPLETE" else None, reason=row.reason)

    def put_back(self, begun: Begun) -> None:
        """Return a stopped trial to the queue; the next worker resumes it. An ended trial does not change."""
        from optuna.trial import TrialState

        with self.locked(), storage_errors(self.folder):
            if not self._storage.get_trial(begun.trial._trial_id).state.is_finished():
                self._storage.set_trial_state_values(begun.trial._trial_id, TrialState.WAITING)
            begun.let_go()

    def _end(self, begun: Begun, state: str, value: float | None = None, reason: str = "") -> None:
        from optuna.trial import TrialState

        with self.locked(), storage_errors(self.folder):
            if reason:
                begun.trial.set_user_attr(_REASON, reason)
            self._study.tell(begun.trial, value, state=TrialState[state])
            begun.let_go()

    def rows(self) -> list[TrialRow]:
        """Return all trials by number."""
        with storage_errors(self.folder):
            trials = self._study.get_trials(deepcopy=False)
        return [_row(trial) for trial in trials]

    def best(self) -> TrialRow | None:
        """Return the complete trial with the best value, the first of equals; None if none is complete."""
        complete = [row for row in self.rows() if row.state == "complete" and row.value is not None]
        sign = -1.0 if self.question.maximize else 1.0
        return min(complete, key=lambda row: (sign * float(row.value or 0.0), row.number), default=None)


def _row(trial: Any) -> TrialRow:
    return TrialRow(
        number=trial.number,
        state=_STATES[trial.state.name],
        value=trial.values[0] if trial.values else None,
        values=dict(trial.params),
        readings=tuple(_readings(trial)),
        reason=str(trial.user_attrs.get(_REASON, "")),
        words=tuple(trial.user_attrs.get(_WORDS, ())),
        killed=int(trial.user_attrs.get(_KILLED, 0)),
        same_as=trial.user_attrs.get(_SAME),
    )


def _readings(trial: Any) -> list[tuple[int, float]]:
    return sorted(trial.intermediate_values.items())


def storage_path(folder: Path) -> Path:
    """The storage of the study in a folder."""
    return folder / "study.db"


def trial_folder(folder: Path, number: int) -> Path:
    """The run directory of a trial."""
    return folder / f"trial-{number:04d}"


def import_optuna() -> Any:
    """Import Optuna and silence its logging. Raises MissingToolError."""
    try:
        import optuna
    except ImportError as error:
        raise MissingToolError(
            "package-missing", f"`bertbench tune` needs Optuna, which is not installed ({error}): {REMEDY}"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def open_storage(folder: Path) -> Any:
    """Return Optuna's storage in a folder, created if missing."""
    optuna = import_optuna()
    from sqlalchemy.engine import URL

    path = storage_path(folder)
    url = URL.create("sqlite", database=str(path)).render_as_string(hide_password=False)
    try:
        with storage_errors(folder):
            # Optuna treats braces as a template.
            return optuna.storages.RDBStorage(
                url.replace("{", "{{").replace("}", "}}"), engine_kwargs={"connect_args": {"timeout": _BUSY_SECONDS}}
            )
    except RuntimeError as error:  # written by another version of Optuna
        raise InputError("tool-version", f"{path} cannot be read by this Optuna: {first_line(error)}") from error


@contextlib.contextmanager
def storage_errors(folder: Path) -> Iterator[None]:
    """Raise errors of the storage in a folder with a remedy.

    Raises:
        InputError: it is damaged.
        StorageError: it is locked, or cannot be read or written now; its content may be intact.
    """
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    path = storage_path(folder)
    try:
        yield
    except (StorageInternalError, SQLAlchemyError) as error:
        said = first_line(_first_cause(error))
        if any(word in said for word in _DAMAGED):
            raise InputError("file-damaged", _damaged(path, said)) from error
        code: Code = "disk-full" if "disk is full" in said else "write-failed"
        remedy = "check disk space and permissions"
        if "is locked" in said:
            code, remedy = "folder-locked", "stop the program that has locked it"
        raise StorageError(
            code, f"{path} cannot be used ({said}): {remedy}, then run the same command again"
        ) from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:  # in the content
        raise InputError("file-damaged", _damaged(path, first_line(error))) from error


def _damaged(path: Path, said: str) -> str:
    return f"{path} is damaged or not the storage of a study ({said}): restore or remove it, or give another --out"


def _first_cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def make_sampler(search: Search, number: int) -> Any:
    """Return a sampler whose draws depend only on the seed and the trial, not on earlier draws of this process."""
    optuna = import_optuna()
    own = int.from_bytes(hashlib.sha256(f"{search.seed}/{number}".encode()).digest()[:4], "big")
    if search.sampler == "random":
        return optuna.samplers.RandomSampler(seed=own)
    return optuna.samplers.TPESampler(seed=own, n_startup_trials=search.startup_trials)


def make_pruner(search: Search) -> Any:
    """Return the pruner, which selects trials to stop early."""
    optuna = import_optuna()
    if search.pruner == "none":
        return optuna.pruners.NopPruner()
    return optuna.pruners.MedianPruner(n_startup_trials=search.prune_after, n_warmup_steps=search.unpruned_readings)
