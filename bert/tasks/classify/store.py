"""The database of a CSV: its tables, division into splits, rows of a split, results of runs. Imports no torch."""

import hashlib
import json
import sqlite3
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from bert.data.finished import Counts
from bert.data.rows import Int64, Ragged, TokenRows
from bert.data.vocabulary import Vocabulary
from common.errors import BertbenchError, Code, InputError, LockedError, SchemaError, StorageError

SCHEMA_VERSION = 6
"""Raised when tables change or hold other values for the same CSV and settings; no other version is read."""
APPLICATION_ID = 0x62627463
SPLITS = ("train", "validate", "test")
TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE labels (code INTEGER PRIMARY KEY, label TEXT NOT NULL UNIQUE, texts INTEGER NOT NULL);
CREATE TABLE texts (number INTEGER PRIMARY KEY, line INTEGER NOT NULL, label INTEGER NOT NULL REFERENCES labels,
    key INTEGER NOT NULL, split TEXT NOT NULL CHECK (split IN ('train', 'validate', 'test')));
CREATE TABLE samples (number INTEGER PRIMARY KEY, text INTEGER NOT NULL REFERENCES texts,
    label INTEGER NOT NULL REFERENCES labels, length INTEGER NOT NULL, token_ids BLOB NOT NULL);
CREATE TABLE left_out (line INTEGER NOT NULL, reason TEXT NOT NULL);
CREATE TABLE runs (number INTEGER PRIMARY KEY, ended TEXT NOT NULL, fingerprint TEXT NOT NULL, result TEXT NOT NULL);
"""
REMEDY = "create it with `bertbench data csv`"
_WAIT_SECONDS = 10.0
# What sqlite3 raises where the file is not damaged.
_CODES: dict[int, tuple[type[BertbenchError], Code]] = {
    sqlite3.SQLITE_BUSY: (LockedError, "folder-locked"),
    sqlite3.SQLITE_FULL: (StorageError, "disk-full"),
    sqlite3.SQLITE_READONLY: (StorageError, "write-failed"),
    sqlite3.SQLITE_IOERR: (StorageError, "path-unreadable"),
}


@contextmanager
def database_errors(path: Path) -> Iterator[None]:
    """Turn what sqlite3 raises, and values that are none of these tables, into errors that name the file."""
    try:
        yield
    except sqlite3.Error as error:
        kind, code = _CODES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, (InputError, "file-damaged"))
        raise kind(code, f"cannot use {path} ({error}): if it is damaged, remove it, then {REMEDY}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError("file-damaged", f"{path} is damaged: remove it, then {REMEDY}") from error


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file of these tables; rows that are added are whole when the block has ended.

    Raises InputError (missing, damaged, another program's), SchemaError, LockedError (held for more than ten seconds),
    StorageError.
    """
    if not is_database(path):
        raise InputError("data-unprepared", f"{path} is no SQLite file of `data csv`: {REMEDY}")
    # Opened for writing, so that the journal of a process that was killed while it wrote is applied.
    address = f"{path.resolve().as_uri()}?mode=rw"
    with database_errors(path), closing(sqlite3.connect(address, timeout=_WAIT_SECONDS, uri=True)) as connection:
        connection.execute("PRAGMA trusted_schema = OFF")  # it may come from elsewhere, with views and triggers
        program = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if program != APPLICATION_ID:
            raise InputError("file-format", f"{path} is not of `bertbench data csv`: give a file of it")
        if version != SCHEMA_VERSION:
            raise SchemaError(
                "record-version", f"{path} has schema version {version}, not {SCHEMA_VERSION}: remove it, then {REMEDY}"
            )
        yield connection
        connection.commit()


def is_database(path: Path) -> bool:
    """Return whether a path is a file that begins as SQLite's do."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"


# Texts that are equal to the model have one key and stay together, whatever their labels say: the smallest label
# stands for them.
_KEYS = """
WITH keys AS (SELECT key, min(label) AS label FROM texts GROUP BY key)
SELECT key FROM keys WHERE label IN (SELECT label FROM keys GROUP BY label HAVING count(*) > 1) ORDER BY label, key;
"""
# What no text of is trained on cannot be found either.
_TRAIN_ON_EACH = """
UPDATE texts SET split = 'train'
    WHERE key IN (SELECT min(key) FROM texts GROUP BY label HAVING sum(split = 'train') = 0);
"""


def text_key(pieces: Sequence[int], seed: int) -> int:
    """Return the hash of a text that the division goes by, a signed number of 64 bits.

    It is that of its word pieces: whatever its capitals, accents and whitespace, what is one text to the model has one
    key. Another vocabulary divides otherwise.
    """
    content = np.asarray(pieces, dtype="<i4").tobytes()
    digest = hashlib.blake2b(content, digest_size=8, salt=(seed % 2**64).to_bytes(8, "little")).digest()
    return int.from_bytes(digest, "little", signed=True)


def divide(connection: sqlite3.Connection, validation: float, test: float) -> None:
    """Set `split` of all texts, which are 'train' before.

    Texts of equal word pieces come into one split. Of the different texts, in the order of their labels and keys,
    every n-th one is taken, so that each label has its share in each split, up to a text or two: of each label at
    least one text is trained on. The shares are below 1 together.
    """
    keys = np.array([key for (key,) in connection.execute(_KEYS)], dtype=np.int64)
    connection.execute("CREATE TEMP TABLE chosen (split TEXT, key INTEGER)")
    for split, share in (("test", test), ("validate", validation / (1 - test))):
        # Every n-th place of an order by label is one: each label has its share, up to one text.
        taken = np.diff((np.arange(len(keys) + 1) * share).astype(np.int64)) > 0
        connection.executemany("INSERT INTO chosen VALUES (?, ?)", ((split, key) for key in keys[taken].tolist()))
        keys = keys[~taken]
    connection.execute("UPDATE texts SET split = chosen.split FROM chosen WHERE chosen.key = texts.key")
    connection.execute("DROP TABLE chosen")
    connection.execute(_TRAIN_ON_EACH)


@dataclass(frozen=True, slots=True)
class TextSource:
    """What a database was made of and with."""

    path: Path
    fingerprint: str
    """Hash of everything its samples depend on."""
    labels: tuple[str, ...]
    label_texts: tuple[int, ...]
    settings: Mapping[str, Any]
    """Columns, encoding, delimiter, max_seq_length, lower_case, shares of the splits, seed, vocabulary's hash."""
    origin: Mapping[str, Any]
    """Name and hash of the CSV, and the options that were given."""
    counts: Counts
    vocabulary: Vocabulary

    @property
    def max_seq_length(self) -> int:
        """Maximum tokens of a row."""
        return int(self.settings["max_seq_length"])


def open_source(path: Path) -> TextSource:
    """Read everything but the samples. Raises as `opened`."""
    with opened(path) as connection:
        meta = {name: json.loads(value) for name, value in connection.execute("SELECT name, value FROM meta")}
        labels = connection.execute("SELECT label, texts FROM labels ORDER BY code").fetchall()
        return TextSource(
            path=path,
            fingerprint=meta["fingerprint"],
            labels=tuple(label for label, _ in labels),
            label_texts=tuple(count for _, count in labels),
            settings=meta["settings"],
            origin=meta["origin"],
            counts=Counts(**meta["counts"]),
            vocabulary=Vocabulary(tuple(meta["vocabulary"]), meta["settings"]["lower_case"]),
        )


def token_type(vocab_size: int) -> "np.dtype[Any]":
    """Return the type of the token ids in the blobs."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<i4")


def read_split(source: TextSource, split: str) -> tuple[TokenRows, Int64]:
    """Return the rows of a split, one of SPLITS, in the order of the CSV, and the number of each row's text [N]."""
    query = (
        "SELECT token_ids, length, samples.label, text FROM samples JOIN texts ON texts.number = text "
        "WHERE split = ? ORDER BY samples.number"
    )
    ids, numbers = bytearray(), array("q")
    with opened(source.path) as connection:
        for token_ids, *row in connection.execute(query, (split,)):
            ids += token_ids
            numbers.extend(row)
        lengths, labels, texts = np.array(numbers, dtype=np.int64).reshape(-1, 3).T
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        values = np.frombuffer(ids, dtype=token_type(len(source.vocabulary.pieces)))
    rows = TokenRows(
        ids=Ragged(values, offsets),
        second=lengths,
        labels=np.ascontiguousarray(labels),
        fingerprint=f"{source.fingerprint}/{split}",
        vocab_size=len(source.vocabulary.pieces),
        vocabulary=source.vocabulary.fingerprint,
        pad_id=source.vocabulary.pad_id,
        max_seq_length=source.max_seq_length,
    )
    return rows, np.ascontiguousarray(texts)


def _fetched(path: Path, query: str) -> list[Any]:
    with opened(path) as connection:
        return connection.execute(query).fetchall()


def split_sizes(path: Path) -> dict[str, dict[str, int]]:
    """Return the texts and rows of each split."""
    query = (
        "SELECT split, count(DISTINCT texts.number), count(*) FROM samples JOIN texts ON texts.number = text "
        "GROUP BY split"
    )
    sizes = {split: {"texts": 0, "rows": 0} for split in SPLITS}
    return sizes | {split: {"texts": texts, "rows": rows} for split, texts, rows in _fetched(path, query)}


def left_out(path: Path) -> list[tuple[int, str]]:
    """Return the lines of the CSV that could not be used, and why, in order."""
    return _fetched(path, "SELECT line, reason FROM left_out ORDER BY line")


def label_distribution(path: Path) -> dict[str, dict[str, int]]:
    """Return, of each split, the texts with each label that it has."""
    query = (
        "SELECT texts.split, labels.label, count(*) FROM texts JOIN labels ON labels.code = texts.label "
        "GROUP BY texts.split, labels.code ORDER BY labels.code"
    )
    distribution: dict[str, dict[str, int]] = {split: {} for split in SPLITS}
    for split, label, count in _fetched(path, query):
        distribution[split][label] = count
    return distribution


def add_run(path: Path, fingerprint: str, result: Mapping[str, Any]) -> None:
    """Keep the result of a training."""
    row = (datetime.now(UTC).isoformat(timespec="seconds"), fingerprint, json.dumps(result, ensure_ascii=False))
    with opened(path) as connection:
        connection.execute("INSERT INTO runs (ended, fingerprint, result) VALUES (?, ?, ?)", row)


def read_runs(path: Path) -> list[dict[str, Any]]:
    """Return the results of all trainings, the oldest first."""
    return [json.loads(text) for (text,) in _fetched(path, "SELECT result FROM runs ORDER BY number")]
