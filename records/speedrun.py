"""The files of a speedrun: the only definition of what `bench` writes and `analysis` reads.

    runs/<name>/speedrun.json       target, seeds, settings, data, machine, a row per seed, and the summary
    runs/<name>/speedrun.csv        the rows
    runs/<name>/seed-<seed>/        the training of a seed: a run directory as records.training describes it

speedrun.json is renewed after every seed and holds no path, so that a copy of it is a record by itself.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import InputError, SchemaError
from records.files import PathInFolder, read_record
from records.schema import SPEEDRUN
from records.training import TrainRun

_DOCUMENT = "speedrun.json"
_FIELDS = {"target": dict, "seeds": list, "settings": dict, "data": dict, "machine": dict, "rows": list}


@dataclass(frozen=True, slots=True)
class Speedrun:
    """The files of one speedrun."""

    path: Path

    document = PathInFolder(_DOCUMENT)
    csv = PathInFolder("speedrun.csv")
    """The rows as a table, by records.schema.SPEEDRUN."""

    def seed(self, seed: int) -> TrainRun:
        """The training of a seed."""
        return TrainRun(self.path / f"seed-{seed}")


def is_speedrun(path: Path) -> bool:
    """Return whether a path is the folder of a speedrun, or its speedrun.json under any name that ends in .json."""
    try:
        if path.is_dir():
            return Speedrun(path).document.is_file()
        if path.suffix != ".json" or not path.is_file():
            return False
        with path.open("rb") as file:  # a trace of gigabytes must not be parsed to find out what it is not
            head = file.read(_HEAD_BYTES)
        return f'"{KIND}"'.encode() in head and read_record(path).get("kind") == KIND
    except (OSError, SchemaError):
        return False


KIND = "speedrun"
"""Value of `kind` in speedrun.json, near its beginning."""
_HEAD_BYTES = 256


def read_speedrun(path: Path) -> dict[str, Any]:
    """Return speedrun.json of a folder, or such a file.

    Raises:
        InputError: there is none.
        SchemaError: it is damaged, or of another version of bertbench.
    """
    file = Speedrun(path).document if path.is_dir() else path
    if not file.is_file():
        raise InputError("path-missing", f"{file} does not exist: give the folder of a `bertbench speedrun`")
    found = read_record(file)
    wrong = [name for name, kind in _FIELDS.items() if not isinstance(found.get(name), kind)]
    if not wrong:
        wrong = [name for name, right in _CHECKS.items() if not right(found)]
    if wrong:
        raise SchemaError(
            "file-damaged",
            f"{file} has invalid values of {', '.join(wrong)}: run the command that wrote it again, or restore it",
        )
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_row(row: object) -> bool:
    if not isinstance(row, dict) or not isinstance(row.get("status"), str):
        return False
    if not isinstance(row.get("seed"), int) or isinstance(row["seed"], bool):  # it names a folder
        return False
    known = ((column, row.get(column.name)) for column in SPEEDRUN)
    return all(
        value is None or (isinstance(value, str) if column.type is str else _is_number(value))
        for column, value in known
    )


def _is_caution(value: object) -> bool:
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(name), str) for name in ("message", "remedy"))
        and isinstance(value.get("seeds"), list)
    )


_CHECKS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "target": lambda found: _is_number(found["target"].get("value")) and isinstance(found["target"].get("score"), str),
    "rows": lambda found: all(map(_is_row, found["rows"])),
    "price_per_hour": lambda found: found.get("price_per_hour") is None or _is_number(found["price_per_hour"]),
    "cautions": lambda found: (
        isinstance(found.get("cautions", []), list) and all(map(_is_caution, found.get("cautions", [])))
    ),
    "data": lambda found: all(
        found["data"].get(name) is None or _is_number(found["data"][name]) for name in ("samples", "held_out_samples")
    ),
}
