"""Read and write the records of a run directory: JSON with a schema version, CSV with typed columns."""

import csv
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from common.atomic import atomic_path, storage_errors, write_json
from common.errors import SchemaError
from common.reading import read_errors

SCHEMA_VERSION = 1
_REMEDY = "remove that file and run again, or restore it"
T = TypeVar("T")


class PathInFolder:
    """A field of a class with a `path`: the path of this name in it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, owner: Any, kind: type) -> Path:
        """Return the path."""
        return Path(owner.path, self._name)


def check_version(path: Path, value: Any) -> None:
    """Raise SchemaError for a document of another schema version, or of none."""
    version = value.get("schema_version") if isinstance(value, dict) else None
    if not isinstance(version, int) or isinstance(version, bool):
        raise SchemaError("record-foreign", f"{path} has no schema_version: give a file written by bertbench")
    if version != SCHEMA_VERSION:
        message = f"{path} has schema_version {version}, but this bertbench reads {SCHEMA_VERSION}"
        raise SchemaError("record-version", f"{message}: use the version that wrote it")


def write_record(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON record with the schema version. Raises StorageError."""
    write_json(path, {"schema_version": SCHEMA_VERSION, **value})


def read_record(path: Path, kind: Any = None) -> dict[str, Any]:
    """Return a JSON record whose declared fields have the types of `kind`, a class of records.documents.

    Raises:
        SchemaError: it cannot be read, a field has another type (the message names the field), or another version of
            bertbench wrote it (record-version).
    """
    with read_errors(path, _REMEDY, SchemaError):
        value = json.loads(path.read_bytes())  # msgspec refuses the bytes of file names
        check_version(path, value)
        if kind is not None:
            msgspec.convert(value, kind)
    return dict(value)


def read_struct(path: Path, kind: type[T]) -> T:
    """Return a JSON record as an instance of a class. Raises SchemaError as read_record does."""
    with read_errors(path, _REMEDY, SchemaError):
        return msgspec.convert(read_record(path), kind)


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file that grows, without a last one that is cut short; none without the file."""
    with read_errors(path, _REMEDY, SchemaError):
        text = path.read_bytes().decode(errors="replace") if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def typed_rows(path: Path, columns: Mapping[str, Callable[[str], Any]]) -> list[dict[str, Any]]:
    """Return the rows of a CSV file as `columns` (records.schema.parsers) types them, None where empty.

    Raises:
        SchemaError: the file cannot be read, or a value is none of its column; the message names the line.
    """
    reader, key = csv.DictReader(read_lines(path)), next(iter(columns))
    rows = []
    try:
        for row in reader:
            if None in row.values() or not row.get(key):
                raise ValueError(f"it has no {key}, or too few fields")
            rows.append({name: parse(row[name]) if row.get(name) else None for name, parse in columns.items()})
    except (TypeError, ValueError, csv.Error) as error:
        problem = f"{path} line {reader.line_num} is not a valid row: {error}"
        raise SchemaError("file-damaged", f"{problem}; remove that line") from error
    return rows


def write_rows(path: Path, columns: Collection[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write these columns as a CSV file, atomically; None as an empty field. Raises StorageError."""
    with (
        atomic_path(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file,  # as write_json
    ):
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


class LineWriter:
    """Writes lines to a file, from its beginning or with mode "a" behind its end. Raises StorageError."""

    def __init__(self, path: Path, mode: str = "w") -> None:
        self._path = path
        with storage_errors(path):
            self._file = path.open(mode, newline="", encoding="utf-8", buffering=1)  # flushes every line

    def line(self, text: str) -> None:
        """Append one line; its end is added."""
        with storage_errors(self._path):
            self._file.write(f"{text}\n")

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
