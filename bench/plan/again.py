"""Finished trials of a run directory measured anew, without a moment in which what was measured is lost.

A trial is measured in RUN/again/TRIAL. Once it has ended, the earlier records move to RUN/earlier/N/trials/TRIAL and
the new ones take their place; so RUN/earlier/N is a run directory of what was replaced by one call. A call that is
interrupted is continued by the same one: RUN/again.json says what it was asked for and what is done.
"""

import shutil
from collections.abc import Sequence
from typing import Any

from common.atomic import storage_errors
from common.errors import SchemaError
from records.files import read_notes, write_record
from records.run import RunDirectory, TrialDirectory

_STAGING, _EARLIER, _STATE = "again", "earlier", "again.json"
# How a trial ends that says nothing of what it measures: what was measured before stays.
_NOTHING_NEW = ("interrupted", "refused")


class Again:
    """One call that measures trials anew, or its continuation. Used while the run directory is locked.

    Args:
        run: holds the trials.
        asked: the trials of the call, by id: an interrupted call with the same ones is continued.
    """

    def __init__(self, run: RunDirectory, asked: Sequence[str]) -> None:
        self._run = run
        self._asked = list(asked)
        state = _read(run)
        self.continued = state.get("asked") == self._asked
        """Whether an earlier call with the same trials was interrupted, and this one finishes it."""
        self._done: list[str] = list(state["done"]) if self.continued else []
        numbers = [int(path.name) for path in (run.path / _EARLIER).glob("*") if path.name.isdigit()]
        self._number = int(state["number"]) if self.continued else max(numbers, default=0) + 1

    @property
    def earlier(self) -> RunDirectory:
        """The run directory of what this call replaces."""
        return _earlier(self._run, self._number)

    def wants(self, trial_id: str) -> bool:
        """Whether a trial is still to be measured anew by this call."""
        return trial_id not in self._done and not self.earlier.trial(trial_id).path.exists()

    def begin(self, trial_id: str) -> TrialDirectory:
        """Return the folder to measure a trial in, empty. Raises StorageError."""
        self._write()
        staged = TrialDirectory(self._run.path / _STAGING / trial_id)
        self.drop(staged)
        return staged

    def end(self, trial_id: str, staged: TrialDirectory, status: str) -> None:
        """Put the new records in the place of the earlier ones, unless the trial measured nothing at all.

        Raises:
            StorageError: a folder cannot be moved; what was measured, before and now, is still there.
        """
        if status in _NOTHING_NEW:
            self.drop(staged)
            return
        _swap(self._run, staged, self.earlier)
        self.done(trial_id)

    def done(self, trial_id: str) -> None:
        """Note that a trial has been measured by this call. Raises StorageError."""
        self._done.append(trial_id)
        self._write()

    def drop(self, staged: TrialDirectory) -> None:
        """Remove the folder of a trial that did not end. Raises StorageError."""
        if staged.path.exists():
            with storage_errors(staged.path):
                shutil.rmtree(staged.path)

    def finish(self) -> None:
        """Forget the call, which has come to its end: the next one measures everything anew. Raises StorageError."""
        with storage_errors(self._run.path):
            (self._run.path / _STATE).unlink(missing_ok=True)
        recover(self._run)

    def _write(self) -> None:
        write_record(self._run.path / _STATE, {"asked": self._asked, "done": self._done, "number": self._number})


def recover(run: RunDirectory) -> None:
    """Tidy up after a call that was killed: records of trials that ended take their place, others are removed.

    The caller holds the lock.

    Raises:
        StorageError: a folder cannot be moved or removed.
        NewerSchemaError: a newer bertbench left what is to be tidied up.
    """
    staging = run.path / _STAGING
    if not staging.is_dir():
        return
    number = _read(run).get("number")
    for path in sorted(staging.iterdir()):
        staged = TrialDirectory(path)
        if number is not None and _ended(staged):
            _swap(run, staged, _earlier(run, int(number)))
        else:
            with storage_errors(path):
                shutil.rmtree(path)
    with storage_errors(staging):
        staging.rmdir()


def _earlier(run: RunDirectory, number: int) -> RunDirectory:
    return RunDirectory(run.path / _EARLIER / str(number))


def _ended(staged: TrialDirectory) -> bool:
    try:
        result = staged.read_result()
    except SchemaError:
        return False
    return result is not None and result["status"] not in _NOTHING_NEW


def _swap(run: RunDirectory, staged: TrialDirectory, earlier: RunDirectory) -> None:
    """Move the records of a trial away and the new ones into their place; `recover` finishes half of it."""
    place, before = (one.trial(staged.path.name).path for one in (run, earlier))
    if place.exists():
        with storage_errors(before):
            before.parent.mkdir(parents=True, exist_ok=True)
            place.rename(before)
    with storage_errors(place):
        staged.path.rename(place)


def _read(run: RunDirectory) -> dict[str, Any]:
    """What an interrupted call left, as far as it can be read. Raises NewerSchemaError: a newer bertbench wrote it."""
    state = read_notes(run.path / _STATE)
    whole = isinstance(state.get("done"), list) and isinstance(state.get("number"), int)
    return state if whole else {}
