"""The rows of a CSV, cut into word pieces and folded, into the tables of its database, some thousand at a time."""

import sqlite3
from collections.abc import Iterator

import numpy as np

from bert.data.stages import Counts
from bert.data.vocabulary import Vocabulary
from bert.tasks.classify import reading
from bert.tasks.classify.columns import REMEDIES, delimiter_name
from bert.tasks.classify.config import CsvConfig
from bert.tasks.classify.folding import fold
from bert.tasks.classify.form import FoundForm
from bert.tasks.classify.schema import SPLITS
from bert.tasks.classify.splits import text_key
from common.errors import InputError

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
        """Write what is left. Raises InputError where there is nothing to train on."""
        self._write()
        texts, path = self.counts.get("texts"), self._config.input
        if not texts:
            raise InputError(
                "rows-invalid", f"{path} has no row that can be used{self._why()}: give a CSV with texts and labels"
            )
        if len(self.labels) < 2:
            raise InputError(
                "labels-invalid",
                f"all {texts:,} texts of {path} that can be used have the label {next(iter(self.labels))!r}"
                f"{self._why()}: a classification needs two labels or more; is --label {self._config.label} the "
                "column?",
            )
        if texts > FEW_TEXTS and len(self.labels) > MOST_LABELS * texts:
            raise InputError("labels-invalid", self._too_many_labels(texts))
        rows = ((code, label, self._texts_of[code]) for label, code in self.labels.items())
        self._connection.executemany("INSERT INTO labels VALUES (?, ?, ?)", rows)

    def _too_many_labels(self, texts: int) -> str:
        """Return the refusal of labels that are no labels; another delimiter or column is the remedy."""
        config, form = self._config, self._form
        tried = f"tried {'; '.join(form.tried)}: " if form.tried else ""
        shown = ", ".join(repr(label[:40]) for label in list(self.labels)[:3])
        return (
            f"the column {form.column(form.label or 0)!r} of {config.input} has {len(self.labels):,} different "
            f"labels for {texts:,} texts ({shown}, ...), cut at each {delimiter_name(form.dialect.delimiter)} "
            f"({form.delimiter_from}){self._why()}: that is no column of labels; {tried}give another --label than "
            f"{config.label}, or {REMEDIES}"
        )

    def _why(self) -> str:
        said = [
            f"{count:,} {name.removeprefix('left out: ')} ({', '.join(self.counts.names[name])})"
            for name, count in self.counts.numbers.items()
            if name.startswith("left out: ")
        ]
        return f"; left out: {'; '.join(said)}" if said else ""

    def _leave_out(self, line: int, reason: str, place: str) -> None:
        self.counts.add(f"left out: {reason}", example=place)
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
