"""The files of several trainings: the only definition of what `bench` writes and `analysis` reads.

    runs/<name>/trainings.json      target, seeds, settings, data, machine, a row per training, a summary per variant
    runs/<name>/trainings.csv       the rows
    runs/<name>/<variant>/          a training: a run directory as records.training describes it
    runs/<name>/profile/            profiles of the variants on several devices

trainings.json is renewed after every training; a copy of it is a record by itself.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import SchemaError
from records.documents import TrainingsRecord, read_document
from records.files import PathInFolder, read_record
from records.run import RunDirectory

KIND = "trainings"
"""Value of `kind` in trainings.json, near its beginning."""
_HEAD_BYTES = 256


@dataclass(frozen=True, slots=True)
class Trainings:
    """The files of several trainings."""

    path: Path

    document = PathInFolder("trainings.json")
    csv = PathInFolder("trainings.csv")
    """The rows as a table, by records.schema.TRAININGS."""

    @property
    def profile(self) -> RunDirectory:
        """Profiles of the variants."""
        return RunDirectory(self.path / "profile")


def is_trainings(path: Path) -> bool:
    """Return whether a path is the folder of several trainings, or its trainings.json under any name."""
    try:
        if path.is_dir():
            return Trainings(path).document.is_file()
        if path.suffix != ".json" or not path.is_file():
            return False
        with path.open("rb") as file:  # a trace of gigabytes must not be parsed to find out what it is not
            head = file.read(_HEAD_BYTES)
        return f'"{KIND}"'.encode() in head and read_record(path).get("kind") == KIND
    except (OSError, SchemaError):
        return False


def read_trainings(path: Path) -> dict[str, Any]:
    """Return trainings.json of a folder, or such a file.

    Raises:
        SchemaError: it is missing, damaged, or of another version of bertbench.
    """
    return read_document(Trainings(path).document if path.is_dir() else path, TrainingsRecord)
