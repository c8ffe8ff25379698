"""Read and write the records of a run directory: JSON with a schema version, CSV with typed columns."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from common.atomic import write_json
from common.errors import SchemaError, content_code
from common.reading import read_regular

SCHEMA_VERSION = 1
_MOST_RECORD_BYTES = 16 << 20
_MOST_TABLE_BYTES = 1 << 30


class PathInFolder:
    """A field of a class with a `path`: the path of this name in it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, owner: Any, kind: type) -> Path:
        """Return the path."""
        return Path(owner.path, self._name)


class NewerSchemaError(SchemaError):
    """A record was written by another version of bertbench: what it means is not known here."""


@contextmanager
def record_errors(place: object, remedy: str = "remove that file and run again, or restore it") -> Iterator[None]:
    """Turn an error of reading or decoding a record into a SchemaError that names the file, or a line of it."""
    try:
        yield
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise SchemaError(content_code(error), f"cannot read {place}: {reason}; {remedy}") from error


def check_version(path: Path, version: object, readable: int) -> None:
    """Raise NewerSchemaError for another schema version, SchemaError for none."""
    if not isinstance(version, int) or isinstance(version, bool):
        raise SchemaError("record-foreign", f"{path} has no schema_version: give a file written by bertbench")
    if version != readable:
        message = f"{path} has schema_version {version}, but this bertbench reads {readable}"
        raise NewerSchemaError("record-version", f"{message}: use the version that wrote it")


def write_record(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON record with the schema version. Raises StorageError."""
    write_json(path, {"schema_version": SCHEMA_VERSION, **value})


def read_record(path: Path, kind: Any = None) -> dict[str, Any]:
    """Return a JSON record whose declared fields have the types of `kind`, a class of records.documents.

    Raises:
        NewerSchemaError: another version of bertbench wrote it.
        SchemaError: it cannot be read, or a field has another type; the message names the field.
    """
    with record_errors(path):
        value = json.loads(read_regular(path, _MOST_RECORD_BYTES))  # msgspec refuses the bytes of file names
    check_version(path, value.get("schema_version") if isinstance(value, dict) else None, SCHEMA_VERSION)
    with record_errors(path):
        if kind is not None:
            msgspec.convert(value, kind)
    return dict(value)


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file that grows, without a last one that is cut short; none without the file."""
    with record_errors(path):
        text = read_regular(path, _MOST_TABLE_BYTES).decode(errors="replace") if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def typed_rows(path: Path, columns: Mapping[str, Callable[[str], Any]]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a CSV file as `columns` (records.schema.parsers) types them, None where empty.

    Raises:
        SchemaError: the file cannot be read, or a value is none of its column; the message names the line.
    """
    reader, key = csv.DictReader(read_lines(path)), next(iter(columns))
    try:
        for row in reader:
            if None in row.values() or not row.get(key):
                raise ValueError(f"it has no {key}, or too few fields")
            yield {name: parse(row[name]) if row.get(name) else None for name, parse in columns.items()}
    except (TypeError, ValueError, csv.Error) as error:
        raise SchemaError(
            "file-damaged", f"{path} line {reader.line_num} is not a valid row: {error}; remove that line"
        ) from error
