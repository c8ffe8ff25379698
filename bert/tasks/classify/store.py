"""What a database of texts holds, read: the rows of a split, labels, settings, results of runs. Imports no torch."""

import hashlib
import json
import shlex
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.data.stages import Counts, fingerprint_of
from bert.data.vocabulary import Vocabulary
from bert.tasks.classify.config import SUFFIX
from bert.tasks.classify.schema import SCHEMA_VERSION, SPLITS, opened
from common.atomic import storage_errors
from common.errors import InputError

Int64 = npt.NDArray[np.int64]
_BLOCK_ROWS = 5_000
_SAMPLES = (
    "SELECT samples.token_ids, samples.length, samples.label, samples.text FROM samples "
    "JOIN texts ON texts.number = samples.text WHERE texts.split = ? ORDER BY samples.number"
)


@dataclass(frozen=True, slots=True)
class TextSet:
    """The rows of one split; a text has one or more of them, next to each other."""

    ids: npt.NDArray[Any]
    """Token ids of all rows behind one another, special ones included."""
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
    version: int = SCHEMA_VERSION

    @property
    def max_seq_length(self) -> int:
        """Tokens of a row at most."""
        return int(self.settings["max_seq_length"])


def remake(path: Path, origin: Mapping[str, Any] | None = None) -> str:
    """Return, in words, how to make a database; from what it was made of, where that is known."""
    name = (origin or {}).get("name")
    beside = path.with_suffix(".csv")
    found = beside if beside.is_file() else Path("FILE.csv")
    file = path.with_name(str(name)) if name else found
    words = ["bertbench", "data", "csv", str(file), "--vocab", "VOCAB.txt"]
    words += [] if file.with_suffix(SUFFIX) == path else ["--output", str(path)]
    return f"make it with `{shlex.join(words)}`"


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
                version=int(connection.execute("PRAGMA user_version").fetchone()[0]),
            )
            whole = _is_whole(found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                "file-damaged",
                f"{path} is damaged, or unfinished: its table meta has not what it should; remove it, then "
                f"{remake(path)}",
            ) from error
    if not whole:
        raise InputError(
            "file-damaged",
            f"{path} is damaged: its labels, settings or vocabulary are not those that were written; remove it, then "
            f"{remake(path, found.origin)}",
        )
    return found


def source_fingerprint(
    version: int, settings: Mapping[str, Any], labels: Sequence[str], checksums: Mapping[str, str]
) -> str:
    """Return the hash of everything that the samples of a database depend on, and of them."""
    return fingerprint_of(version, dict(settings), list(labels), dict(checksums))


def _is_whole(found: TextSource) -> bool:
    fingerprint = source_fingerprint(found.version, found.settings, found.labels, found.checksums)
    return (
        fingerprint == found.fingerprint
        and found.vocabulary.fingerprint == found.settings["vocabulary"]
        and sum(found.label_texts) == found.counts.get("texts")
    )


def check_whole(source: TextSource) -> None:
    """Look at all that a training needs until its end: the samples of each split, results of runs, room for another.

    Raises:
        InputError: it is damaged.
        LockedError: another program holds it.
        StorageError: it, or its folder, cannot be written.
    """
    for split in SPLITS:
        read_split(source, split)
    read_runs(source.path)
    with storage_errors(source.path), TemporaryFile(dir=source.path.parent):
        pass
    with opened(source.path, remake(source.path, source.origin), write=True) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO runs (ended, fingerprint, result) VALUES ('', '', '{}')")
        connection.rollback()


def read_split(source: TextSource, split: str) -> TextSet:
    """Read the rows of a split, one of SPLITS, in the order of the CSV. Raises InputError where they are damaged."""
    with opened(source.path, remake(source.path, source.origin)) as connection:
        found = select_split(connection, source.path, split, int(source.settings["token_bytes"]))
    if found.checksum != source.checksums.get(split):
        raise InputError(
            "file-damaged",
            f"{source.path} is damaged: its samples of {split} are not those that were written; remove it, then "
            f"{remake(source.path, source.origin)}",
        )
    return found


def select_split(connection: sqlite3.Connection, path: Path, split: str, token_bytes: int) -> TextSet:
    """Read the rows of a split from an open database. Raises InputError where a row is none."""
    ids = bytearray()
    columns: list[Int64] = []
    for found, numbers in _blocks(connection, path, split):
        ids += found
        columns.append(numbers)
    lengths, labels, texts = np.concatenate(columns, axis=1) if columns else np.zeros((3, 0), dtype=np.int64)
    if int(lengths.sum()) * token_bytes != len(ids):
        raise InputError(
            "file-damaged", f"{path} is damaged: its rows of {split} have other lengths than they say: {remake(path)}"
        )
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
    """Yield token ids of some rows behind one another, and their lengths, labels and texts [3, rows]."""
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


def add_run(path: Path, fingerprint: str, result: Mapping[str, Any]) -> int:
    """Keep the result of a training; return its number. Raises as `opened` with `write`."""
    row = (datetime.now(UTC).isoformat(timespec="seconds"), fingerprint, json.dumps(result, ensure_ascii=False))
    with opened(path, remake(path), write=True) as connection:
        number = connection.execute("INSERT INTO runs (ended, fingerprint, result) VALUES (?, ?, ?)", row).lastrowid
    return int(number or 0)


def read_runs(path: Path) -> list[dict[str, Any]]:
    """Return the results of all trainings, the oldest first. Raises as open_source; InputError where one is damaged."""
    with opened(path, remake(path)) as connection:
        rows = connection.execute("SELECT result FROM runs ORDER BY number").fetchall()
    try:
        return [dict(json.loads(text)) for (text,) in rows]
    except (ValueError, TypeError) as error:
        raise InputError(
            "file-damaged", f"{path} is damaged: a result of a run is no JSON; remove it, then {remake(path)}"
        ) from error
