"""Records that grow while a trial runs: each line is flushed as it is made, so that a crash loses at most one."""

import csv
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from common.atomic import storage_errors


class LineWriter:
    """Writes lines to a file, from its beginning or with mode "a" behind its end. Raises StorageError."""

    def __init__(self, path: Path, mode: str = "w") -> None:
        self._path = path
        with storage_errors(path):
            self._file = path.open(mode, newline="", encoding="utf-8")

    def line(self, text: str) -> None:
        """Append one line; its end is added."""
        with storage_errors(self._path):
            self._file.write(f"{text}\n")
            self._file.flush()

    def sync(self) -> None:
        """Wait until the disk has all lines."""
        with storage_errors(self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        with storage_errors(self._path):
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class RowWriter(LineWriter):
    """Writes rows to a new CSV file, below its columns."""

    def __init__(self, path: Path, columns: Iterable[str]) -> None:
        super().__init__(path)
        self._columns = list(columns)
        self._writer = csv.writer(self._file)
        self.write(dict(zip(self._columns, self._columns, strict=True)))

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row; None becomes an empty field."""
        with storage_errors(self._path):
            self._writer.writerow([row[name] for name in self._columns])
            self._file.flush()
