"""Read and write the records of a run directory: JSON with a schema version, CSV with typed columns."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, overload

from common.atomic import write_json
from common.errors import SchemaError, content_code
from common.reading import read_regular

SCHEMA_VERSION = 1
MOST_RECORD_BYTES = 16 << 20
"""Size beyond which a JSON record is refused."""
MOST_TABLE_BYTES = 1 << 30
"""Size beyond which a table, or a file of one record per line, is refused."""


class HasPath(Protocol):
    """What has a folder."""

    @property
    def path(self) -> Path:
        """The folder."""


class PathInFolder:
    """A field of what has a folder: the path of this name in it."""

    def __init__(self, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, owner: None, kind: type) -> "PathInFolder": ...

    @overload
    def __get__(self, owner: HasPath, kind: type) -> Path: ...

    def __get__(self, owner: HasPath | None, kind: type) -> "PathInFolder | Path":
        """Return the path; of the class, the field."""
        return self if owner is None else owner.path / self._name


class NewerSchemaError(SchemaError):
    """A record was written by another version of bertbench: what it means is not known here."""


def write_record(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON record with the schema version. Raises StorageError."""
    write_json(path, {"schema_version": SCHEMA_VERSION, **value})


def read_record(path: Path) -> dict[str, Any]:
    """Read a JSON record. Raises SchemaError when it is damaged, NewerSchemaError for another schema."""
    try:
        value = json.loads(read_regular(path, MOST_RECORD_BYTES).decode())
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SchemaError(
            content_code(error), f"cannot read {path}: {reason}; remove that file and run again, or restore it"
        ) from error
    version = value.get("schema_version") if isinstance(value, dict) else None
    if not isinstance(version, int) or isinstance(version, bool):
        raise SchemaError("record-foreign", f"{path} has no schema_version: give a file written by bertbench")
    if version != SCHEMA_VERSION:
        raise NewerSchemaError(
            "record-version",
            f"{path} has schema_version {version}, but this bertbench reads {SCHEMA_VERSION}: use the version that "
            "wrote it",
        )
    return dict(value)


def typed_rows(path: Path, columns: Mapping[str, Callable[[str], Any]]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a CSV file as `columns` types them, None where empty; a last line cut short is dropped.

    Raises:
        SchemaError: the file cannot be read, or a value is none of its column (records.schema.parsers); the
            message names the line.
    """
    try:
        text = read_regular(path, MOST_TABLE_BYTES).decode("utf-8", errors="replace")
    except OSError as error:
        raise SchemaError(
            content_code(error), f"cannot read {path}: {error.strerror}; remove it, or restore it"
        ) from error
    whole = text[: text.rfind("\n") + 1]
    reader = csv.DictReader(whole.splitlines())
    try:
        for row in reader:
            yield {name: parse(row[name]) if row.get(name) else None for name, parse in columns.items()}
    except (TypeError, ValueError, csv.Error) as error:
        raise SchemaError(
            "file-damaged",
            f"{path} line {reader.line_num} is not a valid row: {error}; remove that line, or restore the file",
        ) from error
