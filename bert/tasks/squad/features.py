"""The feature file of SQuAD: its windows as columns. Imports no torch.

P contexts, Q questions, W windows (one question has one or more, in order, and they lie next to each other). Columns of
rows of different lengths are Ragged: padding is stored nowhere. For other readers the file also has `questions` and
`queries`, the texts and the word pieces of the questions, and `impossible`, those without an answer (2.0 only) [Q].
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.data.features import Columns, FeatureSettings, read_features
from bert.data.rows import Int64, Ragged, TokenRows, join_offsets
from bert.tasks.squad.reading import Golds

Int32 = npt.NDArray[np.int32]

_NUMBERS = {"question_context": "contexts.offsets", "window_question": "question_context"}
"""Columns of numbers, and the column that has an entry for each of the things they number."""
_ENDS = ("question_answers", "question_windows")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings(FeatureSettings):
    """Settings of SQuAD features."""

    split: str
    """'training' (questions whose answer cannot be found are left out, windows have targets) or 'evaluation'."""
    version: str
    """'1.1' or '2.0'."""
    doc_stride: int
    """Document tokens from the beginning of one window to that of the next."""
    max_query_length: int
    """Word pieces of the question; the rest is cut."""
    drop_unanswerable_windows: bool = False
    """Windows that do not hold the whole answer of their question are left out (the split 'training' only)."""

    @property
    def kind(self) -> str:
        """Split and version."""
        return f"squad-{self.split}-v{self.version}"

    @property
    def lengths(self) -> tuple[object, ...]:
        """Window, stride and question, and whether windows without the answer were left out."""
        answered = ("answered",) if self.drop_unanswerable_windows else ()
        return self.max_seq_length, self.doc_stride, self.max_query_length, *answered


@dataclass(frozen=True, kw_only=True, slots=True)
class SquadFeatures:
    """The windows of one file of questions."""

    settings: Settings
    fingerprint: str
    """Hash of the settings and the dataset's content."""
    contexts: Ragged
    """Texts of the contexts, UTF-8 bytes [P]."""
    tokens: Ragged
    """Word pieces of each context [P]."""
    token_words: Int32
    """Of each token in `tokens.values`: the number of its word in the context, words being split on whitespace."""
    question_ids: Ragged
    """Ids of the questions, UTF-8 bytes [Q], in the order of the file."""
    question_context: Int32
    """Number of each question's context [Q]."""
    answers: Ragged
    """Texts of all gold answers, UTF-8 bytes, one row each, question by question."""
    question_answers: Int64
    """Question q has the answers question_answers[q] .. question_answers[q + 1] - 1: [Q + 1]."""
    question_windows: Int64
    """Question q has the windows question_windows[q] .. question_windows[q + 1] - 1: [Q + 1]."""
    window_question: Int32
    """Number of each window's question [W]."""
    window_first: Int32
    """Number in its context of each window's first document token [W]."""
    window_tokens: Int32
    """Document tokens of each window [W]."""
    input_ids: Ragged
    """[CLS] question [SEP] document [SEP] of each window [W]."""
    max_context: Ragged
    """Whether each document token has its greatest context in this window, uint8 0 or 1 [W], rows of window_tokens."""
    start_positions: Int32
    """Target: position in the window of the answer's first token, 0 if the window holds no (whole) answer [W]."""
    end_positions: Int32
    """Target: position of its last token, else 0 [W]; all 0 for the split 'evaluation'."""

    @classmethod
    def of(cls, settings: Settings, fingerprint: str, columns: Columns) -> "SquadFeatures":
        """Return those of a file's columns."""
        values: dict[str, Any] = {
            one.name: Ragged(columns[f"{one.name}.values"], columns[f"{one.name}.offsets"])
            if one.type is Ragged
            else columns[one.name]
            for one in fields(cls)[2:]
        }
        return cls(settings=settings, fingerprint=fingerprint, **values)

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self.window_question)

    @property
    def lengths(self) -> Int64:
        """Real tokens of each window [W]."""
        return self.input_ids.lengths

    @property
    def document_starts(self) -> Int32:
        """Position in each window of its first document token, which is also the length of segment 0 [W]."""
        starts: Int32 = (self.lengths - self.window_tokens - 1).astype(np.int32)
        return starts

    @property
    def rows(self) -> TokenRows:
        """The windows as batches are made of them, with start_positions and end_positions [W]."""
        targets = {"start_positions": self.start_positions, "end_positions": self.end_positions}
        return TokenRows(
            ids=self.input_ids,
            second=self.document_starts.astype(np.int64),
            labels=np.empty(0, dtype=np.int64),
            columns={name: column.astype(np.int64) for name, column in targets.items()},
            fingerprint=self.fingerprint,
            vocab_size=self.settings.vocab_size,
            vocabulary=self.settings.vocabulary,
            pad_id=self.settings.pad_id,
            max_seq_length=self.settings.max_seq_length,
        )


def joined(parts: Sequence[Columns]) -> Columns:
    """Return the columns of a file from those of its parts, in order; each part numbers its own things from 0."""
    found = {}
    for name in parts[0]:
        columns = [part[name] for part in parts]
        if name.endswith(".offsets") or name in _ENDS:
            found[name] = join_offsets(columns)
            continue
        if name in _NUMBERS:
            of = _NUMBERS[name]
            counts = [len(part[of]) - of.endswith(".offsets") for part in parts]
            before = np.cumsum([0, *counts[:-1]], dtype=np.int32)
            columns = [column + shift for column, shift in zip(columns, before, strict=True)]
        found[name] = np.concatenate(columns)
    return found


def open_features(path: Path, split: str) -> SquadFeatures:
    """Read the features of a split: a file, or the only one in a folder. Raises InputError, SchemaError."""
    file = read_features(path, f"squad-{split}")
    return SquadFeatures.of(Settings(**file.settings), file.fingerprint, file.columns)


def golds_of(features: SquadFeatures, numbers: Sequence[int] | None = None) -> Golds:
    """Return the gold answers kept beside the features of questions: of those with these numbers, or of all."""
    ids, texts, bounds = features.question_ids.texts(), features.answers.texts(), features.question_answers.tolist()
    chosen = range(len(ids)) if numbers is None else numbers
    answers = [texts[bounds[number] : bounds[number + 1]] for number in chosen]
    return Golds(features.settings.version, [ids[number] for number in chosen], answers)
