"""Create the database of a CSV: rows are read, tokenized, folded and split, atomically and only once."""

import dataclasses
import glob
import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from bert.data.finished import Counts
from bert.data.pool import Progress
from bert.data.vocabulary import Vocabulary, load_vocabulary
from bert.tasks.classify import reading
from bert.tasks.classify.config import SPECIAL_TOKENS, CsvConfig
from bert.tasks.classify.reading import FoundForm, check_file, find_form
from bert.tasks.classify.store import (
    APPLICATION_ID,
    SCHEMA_VERSION,
    SPLITS,
    TABLES,
    TextSource,
    checksum_of,
    database_errors,
    divide,
    is_database,
    open_source,
    read_runs,
    remake,
    source_fingerprint,
    split_sizes,
    text_key,
)
from bert.tasks.classify.summary import LEFT_OUT, CsvSummary
from common.atomic import atomic_path
from common.errors import InputError, SchemaError
from common.locks import locked
from common.reading import read_errors


def fold(pieces: Sequence[int], max_seq_length: int, cls_id: int, sep_id: int) -> Iterator[list[int]]:
    """Yield the rows of one text: [CLS] the next pieces [SEP], each of max_seq_length tokens but the last.

    Args:
        pieces: word pieces of the text, without special ones; none make no row.
        max_seq_length: maximum tokens of a row, special ones included; at least 3.
        cls_id: id of [CLS].
        sep_id: id of [SEP].
    """
    room = max_seq_length - SPECIAL_TOKENS
    for first in range(0, len(pieces), room):
        yield [cls_id, *pieces[first : first + room], sep_id]


FEW_TEXTS, MOST_LABELS = 20, 0.9
"""Labels per text from which on the column cannot be one of labels, and texts up to which nobody can tell."""
_BATCH_TEXTS = 2000
_BATCH_CHARACTERS = 2_000_000


class Writer:
    """Takes rows and writes texts and samples, some thousand at a time."""

    def __init__(
        self, connection: sqlite3.Connection, config: CsvConfig, form: FoundForm, vocabulary: Vocabulary
    ) -> None:
        self.labels: dict[str, int] = {}
        self.counts = Counts()
        self._connection = connection
        self._config = config
        self._form = form
        self._vocabulary = vocabulary
        self._type = np.dtype("<u2" if len(vocabulary.pieces) <= 2**16 else "<i4")
        self._held: list[reading.TextRow] = []
        self._held_characters = 0
        self._left_out: list[tuple[int, str]] = []
        self._texts_of: list[int] = []

    def add(self, row: reading.TextRow | reading.LeftOut) -> None:
        """Take the next row of the CSV."""
        self.counts.add("rows")
        if isinstance(row, reading.LeftOut):
            self._leave_out(row.line, row.reason, row.place)
            return
        for odd in row.odd:
            self.counts.add(odd, example=row.place)
        self._held.append(row)
        self._held_characters += len(row.text)
        if len(self._held) >= _BATCH_TEXTS or self._held_characters >= _BATCH_CHARACTERS:
            self._write()

    def end(self) -> None:
        """Write what is left. Raises InputError if there is nothing to train on."""
        self._write()
        texts, path = self.counts.get("texts"), self._config.input
        if not texts:
            raise InputError("rows-invalid", f"{path} has no usable row{self._why()}: give a CSV with texts and labels")
        if len(self.labels) < 2:
            raise InputError(
                "labels-invalid",
                f"all {texts:,} texts of {path} have the label {next(iter(self.labels))!r}{self._why()}: give another "
                f"--label than {self._config.label}",
            )
        if texts > FEW_TEXTS and len(self.labels) > MOST_LABELS * texts:
            raise InputError("labels-invalid", self._too_many_labels(texts))
        rows = ((code, label, self._texts_of[code]) for label, code in self.labels.items())
        self._connection.executemany("INSERT INTO labels VALUES (?, ?, ?)", rows)

    def _too_many_labels(self, texts: int) -> str:
        config, form = self._config, self._form
        shown = ", ".join(repr(label[:40]) for label in list(self.labels)[:3])
        return (
            f"the column {form.column(form.label or 0)!r} of {config.input} has {len(self.labels):,} different labels "
            f"for {texts:,} texts ({shown}, ...), read with delimiter {form.delimiter!r}{self._why()}: give another "
            f"--label than {config.label}, or --delimiter"
        )

    def _why(self) -> str:
        reasons = [
            f"{count:,} {name.removeprefix(LEFT_OUT)} ({', '.join(self.counts.names[name])})"
            for name, count in self.counts.numbers.items()
            if name.startswith(LEFT_OUT)
        ]
        return f"; left out: {'; '.join(reasons)}" if reasons else ""

    def _leave_out(self, line: int, reason: str, place: str) -> None:
        self.counts.add(f"{LEFT_OUT}{reason}", example=place)
        self._left_out.append((line, reason))
        if len(self._left_out) >= _BATCH_TEXTS:
            self._write_left_out()

    def _write_left_out(self) -> None:
        self._connection.executemany("INSERT INTO left_out VALUES (?, ?)", self._left_out)
        self._left_out.clear()

    def _write(self) -> None:
        rows, self._held, self._held_characters = self._held, [], 0
        encoded = self._vocabulary.encode([row.text for row in rows])
        texts: list[tuple[int, int, int, int, str]] = []
        samples: list[tuple[int, int, int, bytes]] = []
        for row, pieces in zip(rows, encoded, strict=True):
            if not pieces:
                self._leave_out(row.line, reading.NO_PIECES, row.place)
                continue
            number, code = self.counts.get("texts"), self._code(str(row.label))
            self.counts.add("texts")
            texts.append((number, row.line, code, text_key(pieces, self._config.seed), SPLITS[0]))
            samples += ((number, code, len(ids), blob) for ids, blob in self._rows(pieces))
        self._connection.executemany("INSERT INTO texts VALUES (?, ?, ?, ?, ?)", texts)
        self._connection.executemany(
            "INSERT INTO samples (text, label, length, token_ids) VALUES (?, ?, ?, ?)", samples
        )
        self.counts.add("samples", len(samples))
        self._write_left_out()

    def _rows(self, pieces: list[int]) -> Iterator[tuple[list[int], bytes]]:
        vocabulary = self._vocabulary
        self.counts.add("word pieces", len(pieces))
        self.counts.add("folded texts", int(len(pieces) + 2 > self._config.max_seq_length))
        for ids in fold(pieces, self._config.max_seq_length, vocabulary.cls_id, vocabulary.sep_id):
            yield ids, np.array(ids, dtype=self._type).tobytes()

    def _code(self, label: str) -> int:
        code = self.labels.setdefault(label, len(self.labels))
        if code == len(self._texts_of):
            self._texts_of.append(0)
        self._texts_of[code] += 1
        return code


def prepare(config: CsvConfig, progress: Progress) -> CsvSummary:
    """Make the database of a CSV, or keep the one that an earlier call made of the same CSV with the same options.

    One process at a time makes it, others wait and keep what it has made. A database of another CSV, or with results
    of trainings, is not replaced. Memory does not depend on the size of the CSV.

    Args:
        config: what is asked for.
        progress: called with the rows read so far.

    Raises:
        InputError: the CSV or the vocabulary cannot be read, or has nothing to train on; or the output is a file that
            was not made here, or is not to be replaced.
        StorageError: it cannot be written.
        LockedError: another program holds the database.
    """
    began = time.monotonic()
    path = config.database
    vocabulary = load_vocabulary(config.vocab, config.lower_case)
    check_file(config.input)
    found, differs = _finished(config, vocabulary)
    kept = found is not None
    if found is None:
        with locked(path.parent, "another preparation", "wait for it", wait=True, name=lock_name(path)):
            found, differs = _finished(config, vocabulary)
            kept = found is not None
            if found is None:
                for left_over in path.parent.glob(f".{glob.escape(path.name)}.*.tmp*"):
                    left_over.unlink(missing_ok=True)  # of one that was killed: nobody else writes here now
                _build(config, vocabulary, progress)
                found = open_source(path)
    tokenized = None if kept else vocabulary.tokenizer.note
    return CsvSummary(found, split_sizes(path), kept, time.monotonic() - began, differs, tokenized)


def lock_name(path: Path) -> str:
    """Return the name of the file beside a database that is locked while it, or files beside it, are made."""
    return f".{path.stem}.lock"


def _finished(config: CsvConfig, vocabulary: Vocabulary) -> tuple[TextSource | None, str | None]:
    """Return the database where it was made of this CSV with these options; else how the one there differs."""
    path = config.database
    if not path.exists():
        return None, None
    if path.is_file() and path.stat().st_size and os.access(path, os.R_OK) and not is_database(path):
        raise InputError("folder-occupied", f"{path} exists and is not a SQLite database: give another --output")
    try:
        found = open_source(path)
    except (InputError, SchemaError) as error:
        raise type(error)(error.code, f"{error}; to keep the file, give another --output") from error
    differs = _difference(found, config, vocabulary)
    if differs is None:
        return found, None
    name, runs = found.origin.get("name"), len(read_runs(path))
    if runs or name != config.input.name:
        find_form(config.input, config)  # refuses missing columns first
        results = f" and holds the results of {runs} training run{'s' * (runs != 1)}" if runs else ""
        raise InputError(
            "folder-occupied",
            f"{path} {differs}{results}: remove it, or give --output FILE.sqlite for {config.input.name}",
        )
    return None, differs


def _difference(found: TextSource, config: CsvConfig, vocabulary: Vocabulary) -> str | None:
    """Return how a database differs from the wanted one, in words; None if it does not."""
    if not is_of(found, config.input):
        name = found.origin.get("name")
        return f"was of {name}" if name != config.input.name else f"was of {name} as it was before"
    before, wanted = found.origin.get("options") or {}, _options(config, vocabulary)
    others = [name for name in wanted if before.get(name) != wanted[name]]
    differences = [
        "another vocabulary" if name == "vocabulary" else f"{name} {before.get(name)}, not {wanted[name]}"
        for name in others
    ]
    return f"had {'; '.join(differences)}" if others else None


def _options(config: CsvConfig, vocabulary: Vocabulary) -> dict[str, Any]:
    given = dataclasses.asdict(config)
    for name in ("input", "vocab", "output"):
        del given[name]
    return {**given, "vocabulary": vocabulary.fingerprint}


def _digest(path: Path) -> str:
    with read_errors(path, "give a CSV file"), path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _build(config: CsvConfig, vocabulary: Vocabulary, progress: Progress) -> None:
    path = config.database
    before = config.input.stat()
    form = find_form(config.input, config)
    digest = _digest(config.input)
    settings = _settings(config, form, vocabulary)
    with (
        atomic_path(path) as temporary,
        database_errors(path, remake(path)),
        closing(sqlite3.connect(temporary)) as connection,
    ):
        # Nobody else sees the file before it is whole and has its name.
        connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + TABLES)
        writer = Writer(connection, config, form, vocabulary)
        for row in reading.read_rows(config.input, form):
            writer.add(row)
            progress("rows", writer.counts.get("rows"), None)
        writer.end()
        divide(connection, config.validation, config.test)
        after = config.input.stat()
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise InputError("file-changed", f"{config.input} changed while being read: run the same command again")
        checksums = {split: checksum_of(connection, path, split) for split in SPLITS}
        fingerprint = source_fingerprint(settings, list(writer.labels), checksums)
        meta = {
            "fingerprint": fingerprint,
            "settings": settings,
            "origin": {
                "name": config.input.name,
                "bytes": after.st_size,
                "modified_ns": after.st_mtime_ns,
                "digest": digest,
                "options": _options(config, vocabulary),
            },
            "counts": writer.counts.to_json(),
            "checksums": checksums,
            "vocabulary": list(vocabulary.pieces),
        }
        rows = ((name, json.dumps(value, ensure_ascii=False)) for name, value in meta.items())
        connection.executemany("INSERT INTO meta VALUES (?, ?)", rows)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.commit()
    progress("rows", writer.counts.get("rows"), writer.counts.get("rows"))


def _settings(config: CsvConfig, form: FoundForm, vocabulary: Vocabulary) -> dict[str, Any]:
    assert form.label is not None
    return {
        "text": form.column(form.text),
        "label": form.column(form.label),
        "encoding": form.encoding,
        "delimiter": form.delimiter,
        "quoting": form.quoting,
        "columns": form.width,
        "header": None if form.header is None else list(form.header),
        "lower_case": vocabulary.lower_case,
        "vocabulary": vocabulary.fingerprint,
        "vocab_size": len(vocabulary.pieces),
        "token_bytes": 2 if len(vocabulary.pieces) <= 2**16 else 4,
        "max_seq_length": config.max_seq_length,
        "validation": config.validation,
        "test": config.test,
        "seed": config.seed,
    }


def current(csv_file: Path, database: Path) -> TextSource | None:
    """Return a database where it was made of this CSV as it is now, with whatever options; else None.

    Raises:
        InputError: the file there was not made here, or is damaged.
        SchemaError: it is of another version.
    """
    if not database.exists():
        return None
    found = open_source(database)
    return found if is_of(found, csv_file) else None


def is_of(found: TextSource, csv_file: Path) -> bool:
    """Whether a database was made of a CSV with this content; the content is read where size or time are others."""
    state = csv_file.stat()
    before = tuple(found.origin.get(name) for name in ("name", "bytes", "modified_ns"))
    now = (csv_file.name, state.st_size, state.st_mtime_ns)
    return before == now or found.origin.get("digest") == _digest(csv_file)
