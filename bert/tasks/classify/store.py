"""Read a database of texts: the rows of a split, labels, settings, results of runs. Imports no torch."""

import hashlib
import json
import shlex
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.data.finished import Counts, fingerprint_of
from bert.data.vocabulary import Vocabulary
from bert.tasks.classify.config import SUFFIX
from common.errors import BertbenchError, Code, InputError, LockedError, SchemaError, StorageError

SCHEMA_VERSION = 5
"""Raised when tables change or hold other values for the same CSV and settings; no other version is read."""
APPLICATION_ID = 0x62627463
"""Tells these files from those of other programs."""
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


_WAIT_SECONDS = 10.0
# What sqlite3 raises where the file is not damaged, by its words.
_CODES: dict[str, tuple[type[BertbenchError], Code]] = {
    "locked": (LockedError, "folder-locked"),
    "full": (StorageError, "disk-full"),
    "readonly": (StorageError, "write-failed"),
    "unable to open": (StorageError, "path-unreadable"),
    "I/O error": (StorageError, "path-unreadable"),
}


@contextmanager
def database_errors(path: Path, remedy: str) -> Iterator[None]:
    """Turn what sqlite3 raises into LockedError, StorageError and InputError; `remedy` is for a damaged file."""
    try:
        yield
    except sqlite3.Error as error:
        if known := next((_CODES[words] for words in _CODES if words in str(error)), None):
            raise known[0](known[1], f"cannot use {path}: {error}") from error
        raise InputError("file-damaged", f"cannot use {path} ({error}): remove it, then {remedy}") from error


@contextmanager
def opened(path: Path, remedy: str, write: bool = False) -> Iterator[sqlite3.Connection]:
    """Open a file of these tables, to be read or to have rows added, which are whole when the block has ended.

    Raises:
        InputError: it is missing, damaged, or of another program; `remedy` says how to make it.
        SchemaError: another version of these tables.
        LockedError: another program holds it for more than ten seconds.
        StorageError: it cannot be written.
    """
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise InputError("path-kind" if path.is_dir() else "data-unprepared", f"{path} {what}: {remedy}")
    # A process that was killed while it wrote leaves a journal, which is applied when the file is opened for writing.
    unfinished = path.with_name(f"{path.name}-journal").exists()
    address = f"{path.resolve().as_uri()}?mode={'rw' if write or unfinished else 'ro'}"
    with (
        database_errors(path, remedy),
        closing(sqlite3.connect(address, timeout=_WAIT_SECONDS, uri=True)) as connection,
    ):
        connection.execute("PRAGMA trusted_schema = OFF")  # it may come from elsewhere, with views and triggers
        _check(path, connection, remedy)
        yield connection
        connection.commit()


def is_database(path: Path) -> bool:
    """Return whether a file begins as SQLite's do."""
    try:
        with path.open("rb") as file:
            return file.read(16) == b"SQLite format 3\0"
    except OSError:
        return False


def _check(path: Path, connection: sqlite3.Connection, remedy: str) -> None:
    program = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if program != APPLICATION_ID:
        raise InputError("file-format", f"{path} is not of `bertbench data csv`: give a file of it")
    if version != SCHEMA_VERSION:
        raise SchemaError(
            "record-version", f"{path} has schema version {version}, not {SCHEMA_VERSION}: remove it, then {remedy}"
        )


# Texts that are equal to the model have one key and stay together, whatever their labels say: the smallest label
# stands for them.
_KEYS = """
CREATE TEMP TABLE keys AS SELECT key, min(label) AS label FROM texts GROUP BY key;
CREATE TEMP TABLE places AS
    SELECT key, row_number() OVER (ORDER BY label, key) - 1 AS place FROM keys
    WHERE label IN (SELECT label FROM keys GROUP BY label HAVING count(*) > 1);
"""
# Every n-th place of an order by label is one: each label has its share, up to one text.
_TAKE = """
CREATE TEMP TABLE chosen_{split} AS
    SELECT key FROM places WHERE CAST((place + 1) * {share!r} AS INTEGER) > CAST(place * {share!r} AS INTEGER);
UPDATE texts SET split = '{split}' WHERE key IN (SELECT key FROM chosen_{split});
"""
_REST = """
CREATE TEMP TABLE rest AS
    SELECT key, row_number() OVER (ORDER BY place) - 1 AS place FROM places
    WHERE key NOT IN (SELECT key FROM chosen_test);
DROP TABLE places;
ALTER TABLE rest RENAME TO places;
"""
# What no text of is trained on cannot be found either.
_TRAIN_ON_EACH = """
UPDATE texts SET split = 'train'
    WHERE key IN (SELECT min(key) FROM texts GROUP BY label HAVING sum(split = 'train') = 0);
"""
_END = "DROP TABLE keys; DROP TABLE places; DROP TABLE chosen_test; DROP TABLE chosen_validate;"


def text_key(pieces: Sequence[int], seed: int) -> int:
    """Return the hash of a text that the division goes by, a signed number of 64 bits.

    It is that of its word pieces: what is one text to the model, whatever its capitals, accents and whitespace in the
    file, has one key. Another vocabulary divides otherwise.
    """
    content = np.asarray(pieces, dtype="<i4").tobytes()
    digest = hashlib.blake2b(content, digest_size=8, salt=(seed % 2**64).to_bytes(8, "little")).digest()
    return int.from_bytes(digest, "little", signed=True)


def divide(connection: sqlite3.Connection, validation: float, test: float) -> None:
    """Set `split` of all texts, which are 'train' before.

    Texts of equal word pieces come into one split. Of the different texts, in the order of their labels and keys,
    every n-th one is taken, so that each label has its share in each split, up to a text or two: of each label at
    least one text is trained on.
    `validation` and `test` are shares of the texts, below 1 together.
    """
    connection.executescript(_KEYS)
    connection.executescript(_TAKE.format(split="test", share=float(test)))
    connection.executescript(_REST)
    connection.executescript(_TAKE.format(split="validate", share=float(validation / (1 - test))))
    connection.executescript(_TRAIN_ON_EACH)
    connection.executescript(_END)


Int64 = npt.NDArray[np.int64]
_BLOCK_ROWS = 5_000
_SAMPLES = (
    "SELECT samples.token_ids, samples.length, samples.label, samples.text FROM samples JOIN texts ON texts.number = "
    "samples.text WHERE texts.split = ? ORDER BY samples.number"
)


@dataclass(frozen=True, slots=True)
class TextSet:
    """The rows of one split; a text has one or more of them, next to each other."""

    ids: npt.NDArray[Any]
    """Token ids of all rows one after another, special ones included."""
    lengths: Int64
    """Tokens of each row [N]."""
    labels: Int64
    """Code of each row's label [N]."""
    texts: Int64
    """Number of each row's text [N], ascending."""

    @property
    def checksum(self) -> str:
        """Return a hash of all of it, the one that checksum_of gives."""
        columns = (self.ids, self.lengths, self.labels, self.texts)
        return _combined([hashlib.blake2b(np.ascontiguousarray(column).data, digest_size=16) for column in columns])


@dataclass(frozen=True, slots=True)
class TextSource:
    """What a database was made of and with."""

    path: Path
    fingerprint: str
    """Hash of everything its samples depend on, and of them."""
    labels: tuple[str, ...]
    label_texts: tuple[int, ...]
    settings: Mapping[str, Any]
    """Columns, encoding, delimiter, max_seq_length, lower_case, shares of the splits, seed, vocabulary's hash."""
    origin: Mapping[str, Any]
    """Name, bytes, time of change and hash of the CSV, and the options that were given."""
    counts: Counts
    checksums: Mapping[str, str]
    """TextSet.checksum of each split."""
    vocabulary: Vocabulary

    @property
    def max_seq_length(self) -> int:
        """Maximum tokens of a row."""
        return int(self.settings["max_seq_length"])


def remake(path: Path, origin: Mapping[str, Any] | None = None) -> str:
    """Return, in words, how to make a database; from what it was made of, where that is known."""
    name = (origin or {}).get("name")
    beside = path.with_suffix(".csv")
    found = beside if beside.is_file() else Path("FILE.csv")
    file = path.with_name(str(name)) if name else found
    words = ["bertbench", "data", "csv", str(file), "--vocab", "VOCAB.txt"]
    words += [] if file.with_suffix(SUFFIX) == path else ["--output", str(path)]
    return f"create it with `{shlex.join(words)}`"


def open_source(path: Path) -> TextSource:
    """Read everything but the samples.

    Raises:
        InputError: it is missing, damaged, or of another program; the message has the command that makes it.
        SchemaError: another version of the tables.
        LockedError: another program holds it.
    """
    with opened(path, remake(path)) as connection:
        try:
            meta = {name: json.loads(value) for name, value in connection.execute("SELECT name, value FROM meta")}
            labels = connection.execute("SELECT label, texts FROM labels ORDER BY code").fetchall()
            counts = Counts()
            counts.merge(meta["counts"])
            found = TextSource(
                path=path,
                fingerprint=str(meta["fingerprint"]),
                labels=tuple(str(label) for label, _ in labels),
                label_texts=tuple(int(count) for _, count in labels),
                settings=dict(meta["settings"]),
                origin=dict(meta["origin"]),
                counts=counts,
                checksums=dict(meta["checksums"]),
                vocabulary=Vocabulary(tuple(meta["vocabulary"]), bool(meta["settings"]["lower_case"])),
            )
            whole = _is_whole(found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                "file-damaged", f"{path} is damaged or unfinished: remove it, then {remake(path)}"
            ) from error
    if not whole:
        raise InputError(
            "file-damaged",
            f"{path} is damaged (checksum of its labels or settings): remove it, then {remake(path, found.origin)}",
        )
    return found


def source_fingerprint(settings: Mapping[str, Any], labels: Sequence[str], checksums: Mapping[str, str]) -> str:
    """Return the hash of everything that the samples of a database depend on, and of them."""
    return fingerprint_of(SCHEMA_VERSION, dict(settings), list(labels), dict(checksums))


def _is_whole(found: TextSource) -> bool:
    fingerprint = source_fingerprint(found.settings, found.labels, found.checksums)
    return (
        fingerprint == found.fingerprint
        and found.vocabulary.fingerprint == found.settings["vocabulary"]
        and sum(found.label_texts) == found.counts.get("texts")
    )


def read_split(source: TextSource, split: str) -> TextSet:
    """Read the rows of a split, one of SPLITS, in the order of the CSV. Raises InputError if they are damaged."""
    with opened(source.path, remake(source.path, source.origin)) as connection:
        found = select_split(connection, source.path, split, int(source.settings["token_bytes"]))
    if found.checksum != source.checksums.get(split):
        raise InputError(
            "file-damaged",
            f"{source.path} is damaged (checksum of {split}): remove it, then {remake(source.path, source.origin)}",
        )
    return found


def select_split(connection: sqlite3.Connection, path: Path, split: str, token_bytes: int) -> TextSet:
    """Read the rows of a split from an open database. Raises InputError if a row is damaged."""
    ids = bytearray()
    columns: list[Int64] = []
    for found, numbers in _blocks(connection, path, split):
        ids += found
        columns.append(numbers)
    lengths, labels, texts = np.concatenate(columns, axis=1) if columns else np.zeros((3, 0), dtype=np.int64)
    if int(lengths.sum()) * token_bytes != len(ids):
        raise InputError("file-damaged", f"{path} is damaged: rows of {split} have other lengths; {remake(path)}")
    kind = np.dtype("<u2" if token_bytes == 2 else "<i4")
    return TextSet(np.frombuffer(ids, dtype=kind), lengths, labels, texts)


def checksum_of(connection: sqlite3.Connection, path: Path, split: str) -> str:
    """Return TextSet.checksum of a split without holding it in memory. Raises as select_split."""
    hashes = [hashlib.blake2b(digest_size=16) for _ in range(4)]
    for ids, numbers in _blocks(connection, path, split):
        for one, content in zip(hashes, (ids, *(row.tobytes() for row in numbers)), strict=True):
            one.update(content)
    return _combined(hashes)


def _blocks(connection: sqlite3.Connection, path: Path, split: str) -> Iterator[tuple[bytes, Int64]]:
    """Yield token ids of some rows one after another, and their lengths, labels and texts [3, rows]."""
    rows = connection.execute(_SAMPLES, (split,))
    try:
        while block := rows.fetchmany(_BLOCK_ROWS):
            blobs, *numbers = zip(*block, strict=True)
            yield b"".join(blobs), np.array(numbers, dtype=np.int64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError("file-damaged", f"{path} is damaged ({error}): {remake(path)}") from error


def _combined(hashes: "Sequence[hashlib.blake2b]") -> str:
    return hashlib.blake2b(b"".join(one.digest() for one in hashes), digest_size=16).hexdigest()


def split_sizes(path: Path) -> dict[str, dict[str, int]]:
    """Return the texts and rows of each split. Raises as open_source."""
    sizes = {split: {"texts": 0, "rows": 0} for split in SPLITS}
    with opened(path, remake(path)) as connection:
        for split, texts in connection.execute("SELECT split, count(*) FROM texts GROUP BY split"):
            sizes[split]["texts"] = texts
        rows = "SELECT split, count(*) FROM samples JOIN texts ON texts.number = samples.text GROUP BY split"
        for split, samples in connection.execute(rows):
            sizes[split]["rows"] = samples
    return sizes


def left_out(path: Path) -> list[tuple[int, str]]:
    """Return the lines of the CSV that could not be used, and why, in order. Raises as open_source."""
    with opened(path, remake(path)) as connection:
        return [
            (int(line), str(why)) for line, why in connection.execute("SELECT line, reason FROM left_out ORDER BY line")
        ]


def label_distribution(path: Path) -> dict[str, dict[str, int]]:
    """Return, of each split, the texts with each label that it has. Raises as open_source."""
    found: dict[str, dict[str, int]] = {split: {} for split in SPLITS}
    query = (
        "SELECT texts.split, labels.label, count(*) FROM texts JOIN labels ON labels.code = texts.label "
        "GROUP BY texts.split, labels.code ORDER BY labels.code"
    )
    with opened(path, remake(path)) as connection:
        for split, label, count in connection.execute(query):
            found[split][label] = count
    return found


def add_run(path: Path, fingerprint: str, result: Mapping[str, Any]) -> None:
    """Keep the result of a training. Raises as `opened` with `write`."""
    row = (datetime.now(UTC).isoformat(timespec="seconds"), fingerprint, json.dumps(result, ensure_ascii=False))
    with opened(path, remake(path), write=True) as connection:
        connection.execute("INSERT INTO runs (ended, fingerprint, result) VALUES (?, ?, ?)", row)


def read_runs(path: Path) -> list[dict[str, Any]]:
    """Return the results of all trainings, the oldest first. Raises as open_source; InputError if one is damaged."""
    with opened(path, remake(path)) as connection:
        rows = connection.execute("SELECT result FROM runs ORDER BY number").fetchall()
    try:
        return [dict(json.loads(text)) for (text,) in rows]
    except (ValueError, TypeError) as error:
        raise InputError("file-damaged", f"{path} holds a damaged result: remove it, then {remake(path)}") from error
