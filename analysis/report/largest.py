"""The largest batch that fits, as `--max-batch-search` found it, read from max_batch.json and shown as a table."""

from collections.abc import Mapping
from typing import Any

from analysis.report import tables
from common.errors import SchemaError
from records.files import read_record
from records.run import RunDirectory

Row = Mapping[str, Any]

MAX_BATCH_FILE = "max_batch.json"
_NUMBERS = ("seq_len", "world_size", "micro_batch_size")


def read_largest(run: RunDirectory) -> tuple[list[dict[str, Any]], list[str]]:
    """Return what the search found, and what is wrong with its file; both empty where no search was made."""
    path = run.path / MAX_BATCH_FILE
    if not path.exists():
        return [], []
    try:
        found = read_record(path).get("found")
    except SchemaError as error:
        return [], [str(error)]
    if not isinstance(found, list):
        return [], [f"{path} holds no list of what was found: search again, or remove it"]
    rows, notes = [], []
    for number, item in enumerate(found, start=1):
        if isinstance(item, dict) and _is_whole(item):
            rows.append(item)
        else:
            notes.append(f"{path}: entry {number} is damaged and left out: search again, or remove it")
    return rows, notes


def _is_whole(item: Row) -> bool:
    words = all(isinstance(item.get(name), str) for name in ("implementation", "preset", "precision"))
    return words and all(_is_count(item.get(name)) for name in _NUMBERS) and _is_count(item.get("fails_at", 0) or 0)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def largest_tables(found: list[dict[str, Any]]) -> list[tables.Table]:
    """Return the table of what fits and what fails, one line per search; none where nothing was searched."""
    if not found:
        return []
    columns = [
        tables.plain("implementation", "implementation"),
        tables.Column("model", tables.model, tables.model, False),
        tables.recorded("world_size"),
        tables.Column("largest batch that fits", lambda row: row["micro_batch_size"], _fits),
        tables.Column("fails at", lambda row: row.get("fails_at"), _fails_at),
        tables.Column("why the search ended", _why, _why, False),
        tables.Column("proved", _proved, _proved, False),
        tables.Column("sizes tried", _tried, _tried, False),
    ]
    return [tables.build("largest", columns, found)]


def _fits(row: Row) -> str:
    return tables.count(row["micro_batch_size"]) if row["micro_batch_size"] else "none"


def _fails_at(row: Row) -> str:
    return tables.count(row["fails_at"]) if row.get("fails_at") else "no size tried"


def _why(row: Row) -> str:
    return str(row.get("failure") or "not recorded").strip().rstrip(":")


def _proved(row: Row) -> str:
    proved = row.get("proved")
    return ("yes" if proved else "no") if isinstance(proved, bool) else "not recorded"


def _tried(row: Row) -> str:
    tried = row.get("tried")
    pairs = [item for item in tried if isinstance(item, list) and len(item) == 2] if isinstance(tried, list) else []
    return ", ".join(f"{size} {status}" for size, status in pairs) or "not recorded"
