"""The files of several trainings: the only definition of what `bench` writes and `analysis` reads.

    runs/<name>/trainings.json      target, seeds, settings, data, machine, a row per training, a summary per variant
    runs/<name>/trainings.csv       the rows
    runs/<name>/<variant>/          a training: a run directory as records.training describes it
    runs/<name>/profile/            profiles of the variants on several devices

trainings.json is renewed after every training.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from records.documents import TrainingsRecord
from records.files import PathInFolder, read_record
from records.run import RunDirectory


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


def read_trainings(folder: Path) -> dict[str, Any]:
    """Return trainings.json of a folder; without one a record of no rows and settings. Raises SchemaError."""
    path = Trainings(folder).document
    record = read_record(path, TrainingsRecord) if path.is_file() else {}
    return {"target": None, "data": {}, "machine": {}, "price_per_hour": None, "notes": [], "rows": [], **record}
