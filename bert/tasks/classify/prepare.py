"""Create the database of a CSV: rows are read, tokenized, folded and split, atomically and only once."""

import glob
import hashlib
import json
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bert.data.finished import Counts, fingerprint_of
from bert.data.pool import Progress
from bert.data.vocabulary import Vocabulary, load_vocabulary, vocabulary_notes
from bert.tasks.classify.reading import BROKEN, FEWER, MORE, NO_PIECES, CsvForm, FoundForm, Row, find_form, read_rows
from bert.tasks.classify.store import (
    APPLICATION_ID,
    SCHEMA_VERSION,
    SPLITS,
    TABLES,
    TextSource,
    database_errors,
    divide,
    open_source,
    split_sizes,
    text_key,
    token_type,
)
from common.atomic import atomic_path
from common.errors import InputError, UsageError
from common.locks import locked
from common.reading import read_errors

SPECIAL_TOKENS = 2
"""[CLS] and [SEP] of a row."""
LEFT_OUT = "left out: "
"""Begin of the names of counts of unusable rows."""
_MOST_LOST = 0.01
"""Up to this share of rows that do not fit the columns, they are only listed."""
_BATCH_TEXTS = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class CsvTexts(CsvForm):
    """A CSV of texts with labels, and how it is split."""

    lower_case: bool = True
    """Text is lower-cased, as for uncased models; --no-lower-case keeps case, for a cased vocabulary."""
    validation: float = 0.1
    """Fraction of the texts for evaluation during training."""
    test: float = 0.1
    """Fraction of the texts for the final test."""

    def __post_init__(self) -> None:
        """Refuse invalid options."""
        CsvForm.__post_init__(self)
        if not (self.validation >= 0 and self.test >= 0 and self.validation + self.test < 1):
            raise UsageError(
                "option-value",
                f"--validation {self.validation} and --test {self.test} must be at least 0 and below 1 together",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class CsvConfig(CsvTexts):
    """A CSV in, a SQLite file out; a call with the same options keeps what is finished."""

    input: Path
    """CSV file with a text and a label in each row."""
    vocab: Path
    """BERT vocab.txt."""
    output: Path | None = None
    """SQLite file; default beside the CSV, with the suffix .sqlite."""
    max_seq_length: int = 128
    """Maximum tokens of a row, [CLS] and [SEP] included; a longer text becomes several rows."""
    seed: int = 42
    """Seed of the split."""

    def __post_init__(self) -> None:
        """Refuse invalid options."""
        CsvTexts.__post_init__(self)
        if self.max_seq_length <= SPECIAL_TOKENS:
            raise UsageError("option-value", f"--max-seq-length {self.max_seq_length} must be above {SPECIAL_TOKENS}")

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.output or self.input.with_suffix(".sqlite")


@dataclass(frozen=True, slots=True)
class CsvSummary:
    """What a preparation made."""

    source: TextSource
    sizes: Mapping[str, Mapping[str, int]]
    """Texts and rows of each split."""
    kept: bool
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        source = self.source
        return {
            "input": source.origin["name"],
            "database": str(source.path),
            "fingerprint": source.fingerprint,
            "kept": self.kept,
            "seconds": self.seconds,
            "settings": dict(source.settings),
            "labels": dict(zip(source.labels, source.label_texts, strict=True)),
            "splits": {name: dict(sizes) for name, sizes in self.sizes.items()},
            "counts": source.counts.numbers,
            "examples": source.counts.names,
        }

    def notes(self) -> list[str]:
        """Return notes on suspicious data."""
        counts = self.source.counts
        notes = vocabulary_notes(self.source.vocabulary, counts.numbers)
        lost = sum(counts.get(f"{LEFT_OUT}{reason}") for reason in (FEWER, MORE, BROKEN)) / counts.get("rows")
        if lost > _MOST_LOST:
            notes.append(f"{100 * lost:.0f} % of the rows do not fit the columns: try --delimiter, or --no-quoting")
        return notes


def fold(pieces: Sequence[int], max_seq_length: int, cls_id: int, sep_id: int) -> Iterator[list[int]]:
    """Yield the rows of one text: [CLS] the next pieces [SEP], each of max_seq_length tokens but the last."""
    room = max_seq_length - SPECIAL_TOKENS
    for first in range(0, len(pieces), room):
        yield [cls_id, *pieces[first : first + room], sep_id]


def prepare(config: CsvConfig, progress: Progress) -> CsvSummary:
    """Make the database of a CSV, or keep the one that an earlier call made of the same CSV with the same options.

    One process at a time makes it, others wait and keep what it has made. Memory does not grow with the CSV.

    Raises InputError (the CSV or the vocabulary cannot be used, the output is another file), StorageError, LockedError.
    """
    began, path = time.monotonic(), config.database
    vocabulary = load_vocabulary(config.vocab, config.lower_case)
    form = find_form(config.input, config)
    origin = _origin(config, vocabulary)
    with locked(path.parent, "another preparation", "wait for it", wait=True, name=lock_name(path)):
        source = _finished(path, origin)
        kept = source is not None
        if source is None:
            for left_over in path.parent.glob(f".{glob.escape(path.name)}.*.tmp*"):
                left_over.unlink(missing_ok=True)  # of one that was killed: nobody else writes here now
            _build(config, form, origin, vocabulary, progress)
            source = open_source(path)
    return CsvSummary(source, split_sizes(path), kept, time.monotonic() - began)


def lock_name(path: Path) -> str:
    """Return the name of the file beside a database that is locked while it, or files beside it, are made."""
    return f".{path.stem}.lock"


def _origin(config: CsvConfig, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return what a database is made of: the name and the hash of the CSV, and all options."""
    options = {name: value for name, value in asdict(config).items() if name not in ("input", "vocab", "output")}
    with read_errors(config.input, "give a CSV file"), config.input.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    options["vocabulary"] = vocabulary.fingerprint
    return {"name": config.input.name, "digest": digest, "options": options}


def _finished(path: Path, origin: Mapping[str, Any]) -> TextSource | None:
    """Return the database where it was made of this CSV with these options; None if there is no file."""
    if not path.exists():
        return None
    source = open_source(path)
    if source.fingerprint == _fingerprint(origin):
        return source
    before, now = ({"digest": one["digest"], **one["options"]} for one in (source.origin, origin))
    others = [f"{name} {before.get(name)}, not {now[name]}" for name in now if before.get(name) != now[name]]
    raise InputError(
        "folder-occupied",
        f"{path} was made of {source.origin['name']} with {'; '.join(others)}: remove it, or give another --output",
    )


def _fingerprint(origin: Mapping[str, Any]) -> str:
    return fingerprint_of(SCHEMA_VERSION, origin["digest"], origin["options"])


def _build(
    config: CsvConfig, form: FoundForm, origin: dict[str, Any], vocabulary: Vocabulary, progress: Progress
) -> None:
    path, counts = config.database, Counts()
    names = {"text": form.header[form.text], "label": form.header[form.label or 0]}
    settings = {**origin["options"], **asdict(form), **names, "vocab_size": len(vocabulary.pieces)}
    with atomic_path(path) as temporary, database_errors(path), closing(sqlite3.connect(temporary)) as connection:
        # Nobody else sees the file before it is whole and has its name.
        connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + TABLES)
        labels: dict[str, int] = {}
        for rows in batches(read_rows(config.input, form)):
            _add(connection, rows, config, vocabulary, labels, counts)
            progress("rows", counts.get("rows"), None)
        if len(labels) < 2:
            reasons = [f"{count:,} {name}" for name, count in counts.numbers.items() if name.startswith(LEFT_OUT)]
            raise InputError(
                "labels-invalid" if labels else "rows-invalid",
                f"{config.input} has {counts.get('texts'):,} usable rows with {len(labels)} label(s) in column "
                f"{config.label!r} ({'; '.join(reasons)}): give texts of two labels, another --label, or --delimiter",
            )
        connection.executemany("INSERT INTO labels VALUES (?, ?, 0)", enumerate(labels))
        connection.execute("UPDATE labels SET texts = (SELECT count(*) FROM texts WHERE label = code)")
        divide(connection, config.validation, config.test)
        meta = {
            "fingerprint": _fingerprint(origin),
            "settings": settings,
            "origin": origin,
            "counts": counts.to_json(),
            "vocabulary": list(vocabulary.pieces),
        }
        values = ((name, json.dumps(value, ensure_ascii=False)) for name, value in meta.items())
        connection.executemany("INSERT INTO meta VALUES (?, ?)", values)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.commit()
    progress("rows", counts.get("rows"), counts.get("rows"))


def batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Yield rows some thousand at a time."""
    while batch := list(islice(rows, _BATCH_TEXTS)):
        yield batch


def _add(
    connection: sqlite3.Connection,
    rows: list[Row],
    config: CsvConfig,
    vocabulary: Vocabulary,
    labels: dict[str, int],
    counts: Counts,
) -> None:
    """Write rows as texts and samples, or as left out; add their labels and counts."""
    encoded = iter(vocabulary.encode([row.text for row in rows if row.left_out is None]))
    texts, samples, lost = [], [], []
    kind = token_type(len(vocabulary.pieces))
    for row in rows:
        counts.add("rows")
        pieces = next(encoded) if row.left_out is None else []
        if not pieces:
            reason = row.left_out or NO_PIECES
            counts.add(f"{LEFT_OUT}{reason}", example=f"line {row.line}")
            lost.append((row.line, reason))
            continue
        for odd in row.odd:
            counts.add(odd, example=f"line {row.line}")
        number, code = counts.get("texts"), labels.setdefault(str(row.label), len(labels))
        texts.append((number, row.line, code, text_key(pieces, config.seed), SPLITS[0]))
        folds = list(fold(pieces, config.max_seq_length, vocabulary.cls_id, vocabulary.sep_id))
        samples += [(number, code, len(ids), np.array(ids, dtype=kind).tobytes()) for ids in folds]
        counts.add("texts")
        counts.add("word pieces", len(pieces))
        counts.add("folded texts", int(len(folds) > 1))
        counts.add("samples", len(folds))
    connection.executemany("INSERT INTO texts VALUES (?, ?, ?, ?, ?)", texts)
    connection.executemany("INSERT INTO samples (text, label, length, token_ids) VALUES (?, ?, ?, ?)", samples)
    connection.executemany("INSERT INTO left_out VALUES (?, ?)", lost)
