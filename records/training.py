"""Additional files of a run of kind train: the only definition of what `bench` writes and `analysis` reads.

    runs/<name>/train.json                   where the run stands, rewritten after every attempt
    runs/<name>/curve.csv                    the loss curve over all attempts, one row per step
    runs/<name>/checkpoints/                 bert.train's own
    runs/<name>/tensorboard/                 event files
    runs/<name>/trials/<trial id>/events.jsonl

Each call of the command is one attempt, and each attempt one trial (Trial.round counts them).
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from common.errors import SchemaError
from common.reading import read_errors
from records.documents import TrainState
from records.files import PathInFolder, read_lines, read_record, read_struct, typed_rows, write_rows
from records.run import RunDirectory, TrialDirectory
from records.schema import CURVE_COLUMNS

_EVENTS: dict[str, Any] = {
    "resumed": {"path": str, "applied_steps": int, "new_phase": bool},
    "progress": {"step": int, "applied_steps": int, "total_steps": int, "loss": float | None},
    "evaluated": {"applied_steps": int, "samples": int},  # and the scores of the task, None if not finite
    "saved": {"path": str, "applied_steps": int},  # and best_NAME of the best so far, where there are evaluations
    "warned": {"message": str},
    "logging": {"run_ids": dict[str, str]},  # id of the run of each logger that has runs
}
"""Kinds of events, the value of "event", and the fields that readers rely on; "time_ns" is in every one."""
_KINDS = {name: msgspec.defstruct(name.title(), fields.items()) for name, fields in _EVENTS.items()}


@dataclass(frozen=True, slots=True)
class TrainRun:
    """The files of a training run, beside those of RunDirectory."""

    path: Path

    @property
    def run(self) -> RunDirectory:
        """The same folder, as every run is."""
        return RunDirectory(self.path)

    state_json = PathInFolder("train.json")
    """records.documents.TrainState."""
    curve_csv = PathInFolder("curve.csv")
    """The loss curve over all attempts."""
    checkpoints = PathInFolder("checkpoints")
    """Folder of the checkpoints."""
    tensorboard = PathInFolder("tensorboard")
    """Folder of TensorBoard's event files."""

    def attempts(self) -> list[TrialDirectory]:
        """Trials of kind train that can be read, in the order they were made."""
        rounds = []
        for directory in self.run.trials():
            with suppress(SchemaError):
                trial = directory.read_trial()
                if trial.kind == "train":
                    rounds.append((trial.round, directory.path.name, directory))
        return [directory for *_, directory in sorted(rounds, key=lambda one: one[:2])]

    def read_state(self) -> TrainState:
        """Return train.json; the defaults if no attempt has ended. Raises SchemaError when it is damaged."""
        return read_struct(self.state_json, TrainState) if self.state_json.exists() else TrainState()

    def logger_runs(self) -> dict[str, str]:
        """Return the ids of the runs that the attempts so far logged to, by logger. Raises SchemaError."""
        events = (event for directory in self.attempts() for event in read_events(directory))
        return {name: run for one in events if one["event"] == "logging" for name, run in one["run_ids"].items()}

    def best_checkpoint(self) -> Path | None:
        """Return the folder of the best checkpoint; None if there is none. Raises SchemaError as read_state does."""
        best = self.read_state().best
        return self.checkpoints / best.checkpoint if best and (self.checkpoints / best.checkpoint).is_dir() else None

    def read_curve(self) -> list[dict[str, Any]]:
        """Return the rows of curve.csv with typed values; none without the file. Raises SchemaError."""
        return typed_rows(self.curve_csv, CURVE_COLUMNS)


@dataclass(frozen=True, slots=True)
class Trainings:
    """The files of several trainings, each in a folder <variant>/ that is a training run."""

    path: Path

    document = PathInFolder("trainings.json")
    """Target, seeds, settings, data, machine, a row per training, a summary per variant; renewed after every one."""
    csv = PathInFolder("trainings.csv")
    """The rows as a table, by records.schema.TRAININGS."""

    @property
    def profile(self) -> RunDirectory:
        """Profiles of the variants on several devices."""
        return RunDirectory(self.path / "profile")


def read_trainings(folder: Path) -> dict[str, Any]:
    """Return trainings.json of a folder; without one a record of no rows and settings. Raises SchemaError."""
    path = Trainings(folder).document
    record = read_record(path) if path.is_file() else {}
    return {"target": None, "data": {}, "machine": {}, "price_per_hour": None, "rows": [], **record}


def is_train_run(path: Path) -> bool:
    """Return whether a folder is a run of kind train."""
    return TrainRun(path).curve_csv.is_file() or TrainRun(path).state_json.is_file()


def read_events(directory: TrialDirectory) -> list[dict[str, Any]]:
    """Return the events of an attempt, in order; none without the file. Raises SchemaError that names the line."""
    path = directory.events_jsonl
    events = []
    for number, line in enumerate(read_lines(path), start=1):
        with read_errors(f"{path} line {number}", "remove that line", SchemaError):
            event = msgspec.convert(json.loads(line), dict[str, Any])
            kind = _KINDS.get(event.get("event", ""))
            if kind is not None:
                msgspec.convert(event, kind)
                events.append(event)
    return events


def write_curve(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write curve.csv atomically. Raises StorageError."""
    write_rows(path, CURVE_COLUMNS, rows)
