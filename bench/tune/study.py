"""A study of Optuna in a folder: which trial is next, which were killed, what each of them found.

    STUDY/study.db         Optuna's storage: every trial with its values, readings, state and what is said of it
    STUDY/trial-0000/      the run directory of a trial, locked by the worker that trains it

Several processes may work on one study. What must not be done twice, drawing a trial and taking up one whose worker is
gone, is done inside a lock on the folder; the kernel lets go of a killed worker's lock on its trial, so that no time
limit has to tell a slow worker from a dead one. A trial that was stopped or killed waits again under its number, and
whoever takes it goes on from its last checkpoint.
"""

import contextlib
import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.tune.question import ENDED, Question, Search, State, TrialRow, differences
from bench.tune.space import SearchSpace, Value
from bench.tune.storage import (
    REMEDY,
    import_optuna,
    make_evaluator,
    make_pruner,
    make_sampler,
    open_storage,
    storage_errors,
    storage_path,
    trial_folder,
)
from common import locks
from common.errors import InputError, LockedError, MissingToolError, UsageError

LEAST_FOR_IMPORTANCE = 8
"""Complete trials below which nothing is said of how much an option counts: two trials differ by chance."""
_NAME = "bertbench"
_KEY, _WORDS, _REASON, _KILLED, _SAME = "question", "words", "reason", "killed", "same_as"
_STATES: dict[str, State] = {
    "COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "waiting",
}  # fmt: skip


class Begun:
    """A trial that this process holds."""

    def __init__(self, trial: Any, folder: Path, values: Mapping[str, Value], held: ExitStack) -> None:
        self.trial = trial
        self.number = int(trial.number)
        self.folder = folder
        self.values = dict(values)
        self._held = held
        self._reported = {step for step, _ in _readings(trial.study.trials[self.number])}

    def report(self, reading: int, value: float) -> bool:
        """Tell the study a reading of the objective; return whether the trial is to be pruned."""
        if reading not in self._reported:
            with storage_errors(self.folder.parent):
                self.trial.report(value, reading)
            self._reported.add(reading)
        with storage_errors(self.folder.parent):
            return bool(self.trial.should_prune())

    def note_words(self, words: tuple[str, ...]) -> None:
        """Keep the options that make the same training."""
        with storage_errors(self.folder.parent):
            self.trial.set_user_attr(_WORDS, list(words))

    def let_go(self) -> None:
        """Give up the lock on its folder."""
        self._held.close()


class Study:
    """The study in a folder, made where there is none.

    Raises:
        MissingToolError: Optuna is not installed.
        UsageError: the folder holds a study of another question, or something else.
        InputError: its storage is damaged.
        StorageError: it cannot be written, or another program holds it.
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
            # Whoever made it was killed before it could say what for.
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
                    f"{self.folder} holds a study with {'; '.join(found)}: one study has one question; give another "
                    "--out, or the options of before",
                )
        return study

    def _asks(self, study: Any) -> bool:
        """Whether a study says what it asks. Raises InputError where it does not, and has trials."""
        if _KEY not in study.user_attrs and study.get_trials(deepcopy=False):
            raise InputError(
                "file-damaged",
                f"{storage_path(self.folder)} is damaged, its study does not say what it asks: restore or remove it, "
                "or give another --out",
            )
        return _KEY in study.user_attrs

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Hold the study for a moment: its other workers wait."""
        return locks.locked(self.folder, "another worker", "wait for it", wait=True)

    def begin(self, space: SearchSpace, most: int | None) -> Begun | None:
        """Take a trial that waits, or draw one; None where `most` have been drawn, or there is nothing else to try.

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
        """Whether every combination has a trial that ended."""
        ended = {
            json.dumps(row.values, sort_keys=True) for row in self.rows() if row.state not in ("running", "waiting")
        }
        return space.size is not None and len(ended) >= space.size

    def _take_up_killed(self) -> None:
        """Let trials wait that nobody holds though they run: their workers are gone."""
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
        """Return an ended trial with the same values; None where there is none."""
        ended = (row for row in self.rows() if row.state in ENDED)
        return next((row for row in ended if dict(row.values) == begun.values and row.number != begun.number), None)

    def complete(self, begun: Begun, value: float) -> None:
        """The trial came to its end."""
        self._end(begun, "COMPLETE", value=value)

    def prune(self, begun: Begun) -> None:
        """The trial was pruned; its last reading is its value."""
        self._end(begun, "PRUNED")

    def fail(self, begun: Begun, reason: str) -> None:
        """The trial failed."""
        self._end(begun, "FAIL", reason=reason)

    def take_over(self, begun: Begun, row: TrialRow) -> None:
        """End a trial as one with the same values did, without training."""
        with storage_errors(self.folder):
            begun.trial.set_user_attr(_SAME, row.number)
            begun.trial.set_user_attr(_WORDS, list(row.words))
        for reading, value in row.readings:
            begun.report(reading, value)
        state = {"complete": "COMPLETE", "pruned": "PRUNED"}.get(row.state, "FAIL")
        self._end(begun, state, value=row.value if state == "COMPLETE" else None, reason=row.reason)

    def put_back(self, begun: Begun) -> None:
        """Let a trial wait that was stopped: the next worker goes on with it. One that has ended stays as it is."""
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
        """Return the complete trial with the best value, the first of equals; None where there is none."""
        complete = [row for row in self.rows() if row.state == "complete" and row.value is not None]
        sign = -1.0 if self.question.maximize else 1.0
        return min(complete, key=lambda row: (sign * float(row.value or 0.0), row.number), default=None)

    def importance(self, evaluator: str, seed: int) -> tuple[dict[str, float], str]:
        """Return the share of each parameter in the differences of complete trials, the largest first; or why not.

        Raises:
            MissingToolError: the evaluator needs scikit-learn, which is not installed.
        """
        optuna = import_optuna()
        values = [row.value for row in self.rows() if row.state == "complete"]
        if len(values) < LEAST_FOR_IMPORTANCE:
            return {}, f"at least {LEAST_FOR_IMPORTANCE} complete trials are needed, there are {len(values)}"
        if len(set(values)) < 2:
            return {}, "all complete trials have the same result"
        try:
            with storage_errors(self.folder):
                found = optuna.importance.get_param_importances(self._study, evaluator=make_evaluator(evaluator, seed))
        except ImportError as error:
            raise MissingToolError(
                "package-missing", f"importance by {evaluator} needs scikit-learn ({error}): {REMEDY}"
            ) from error
        except (ValueError, RuntimeError) as error:
            return {}, f"Optuna finds none ({error})"
        return {name: float(share) for name, share in found.items()}, ""


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
