"""Records that grow while a trial runs: each row is flushed as it is made, so that a crash loses at most one."""

import csv
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from common.atomic import storage_errors
from records.schema import STEP_COLUMNS


class RowWriter:
    """Appends rows to a new CSV file.

    Raises:
        StorageError: the disk is full or the folder cannot be written; the rows before are kept.
    """

    def __init__(self, path: Path, columns: list[str]) -> None:
        self._path = path
        self._columns = columns
        with storage_errors(path):
            self._file: TextIO = path.open("w", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file)
        self._write(columns)

    def write(self, row: dict[str, Any]) -> None:
        """Append one row; None becomes an empty field."""
        self._write(["" if row[name] is None else row[name] for name in self._columns])

    def _write(self, fields: list[Any]) -> None:
        with storage_errors(self._path):
            self._writer.writerow(fields)
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        with storage_errors(self._path):
            self._file.close()

    def __enter__(self) -> "RowWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def step_writer(path: Path) -> RowWriter:
    """A writer of steps-<rank>.csv."""
    return RowWriter(path, list(STEP_COLUMNS))
