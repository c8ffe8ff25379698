"""The feature file of SQuAD: its windows as columns. Imports no torch.

P contexts, Q questions, W windows (one question has one or more, in order, and they lie next to each other). Columns of
rows of different lengths are Ragged: padding is stored nowhere.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.data.columns import IDS, TEXT, Column, Columns
from bert.data.features import FeatureForm, FeatureSettings
from bert.data.rows import Int64, Ragged, TokenRows
from bert.data.vocabulary import Vocabulary
from bert.tasks.squad.reading import content_of, fingerprint_of_content
from common.errors import InputError

Int32 = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]

FIRST_UNIQUE_ID = 1_000_000_000
"""Window i has the unique id FIRST_UNIQUE_ID + i, as in google-research/bert."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings(FeatureSettings):
    """Settings of SQuAD features."""

    split: str
    """'training' (questions whose answer cannot be found are left out, windows have targets) or 'evaluation'."""
    version: str
    """'1.1' or '2.0'."""
    max_seq_length: int = 384
    """Maximum tokens of a window: [CLS] question [SEP] document [SEP]."""
    doc_stride: int = 128
    """Document tokens from the beginning of one window to that of the next."""
    max_query_length: int = 64
    """Word pieces of the question; the rest is cut."""
    drop_unanswerable_windows: bool = False
    """Windows that do not hold the whole answer of their question are left out (the split 'training' only)."""


@dataclass(frozen=True, slots=True)
class SquadFeatures:
    """The windows of one file of questions, all columns read-only (mapped from the file where it was read from one)."""

    settings: Settings
    fingerprint: str
    """Hash of the settings and the dataset's content."""
    pad_id: int
    """Id of [PAD]."""
    cls_id: int
    """Id of [CLS]."""
    sep_id: int
    """Id of [SEP]."""
    contexts: Ragged
    """Texts of the contexts, UTF-8 bytes [P]."""
    tokens: Ragged
    """Word pieces of each context [P]."""
    token_words: Int32
    """Of each token in `tokens.values`: the number of its word in the context, words being split on whitespace."""
    question_ids: Ragged
    """Ids of the questions, UTF-8 bytes [Q], in the order of the file."""
    questions: Ragged
    """Texts of the questions, UTF-8 bytes [Q]."""
    queries: Ragged
    """Word pieces of each question, cut to max_query_length [Q]."""
    question_context: Int32
    """Number of each question's context [Q]."""
    impossible: npt.NDArray[np.bool_]
    """Questions without an answer [Q] (2.0 only)."""
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
        return TokenRows(
            ids=self.input_ids,
            second=self.document_starts.astype(np.int64),
            labels=np.empty(0, dtype=np.int64),
            columns={
                "start_positions": self.start_positions.astype(np.int64),
                "end_positions": self.end_positions.astype(np.int64),
            },
            fingerprint=self.fingerprint,
            vocab_size=self.settings.vocab_size,
            vocabulary=self.settings.vocabulary,
            pad_id=self.pad_id,
            max_seq_length=self.settings.max_seq_length,
        )


_INT32 = ("<i4",)
_ENDS = ("<i8",)


_COLUMNS = {
    "contexts": Column("context", TEXT, "ragged"),
    "tokens": Column("context", IDS, "ragged", of="token"),
    "token_words": Column("token", _INT32),
    "question_ids": Column("question", TEXT, "ragged"),
    "questions": Column("question", TEXT, "ragged"),
    "queries": Column("question", IDS, "ragged"),
    "question_context": Column("question", _INT32, of="context"),
    "impossible": Column("question", ("|b1",)),
    "answers": Column("answer", TEXT, "ragged"),
    "question_answers": Column("question", _ENDS, "ends", of="answer"),
    "question_windows": Column("question", _ENDS, "ends", of="window"),
    "window_question": Column("window", _INT32, of="question"),
    "window_first": Column("window", _INT32),
    "window_tokens": Column("window", _INT32),
    "input_ids": Column("window", IDS, "ragged"),
    "max_context": Column("window", TEXT, "ragged"),
    "start_positions": Column("window", _INT32),
    "end_positions": Column("window", _INT32),
}
_INPUTS = {"training": "TRAIN.json", "evaluation": "DEV.json", "": "DATASET.json"}


class SquadForm(FeatureForm[Settings, SquadFeatures]):
    """Feature files of SQuAD; each stores the ids of the vocabulary's special pieces."""

    task = "squad"
    title = "SQuAD"
    settings = Settings
    columns = _COLUMNS
    further = "special_ids"
    inputs = _INPUTS

    def whole(self, settings: Settings, fingerprint: str, further: str, columns: Columns) -> SquadFeatures:
        """Make features of columns."""
        special = json.loads(further)
        fields: dict[str, Any] = {
            name: Ragged(columns[f"{name}.values"], columns[f"{name}.offsets"])
            if column.kind == "ragged"
            else columns[name]
            for name, column in self.columns.items()
        }
        return SquadFeatures(
            settings=settings,
            fingerprint=fingerprint,
            pad_id=int(special["pad"]),
            cls_id=int(special["cls"]),
            sep_id=int(special["sep"]),
            **fields,
        )

    def further_of(self, vocabulary: Vocabulary) -> str:
        """Return the ids of special pieces."""
        special = {"pad": vocabulary.pad_id, "cls": vocabulary.cls_id, "sep": vocabulary.sep_id}
        return json.dumps(special, sort_keys=True)

    def kind(self, settings: Settings) -> tuple[str, ...]:
        """Split and version."""
        return settings.split, f"v{settings.version}"

    def lengths(self, settings: Settings) -> tuple[object, ...]:
        """Stride and question, and whether windows without the answer were left out."""
        answered = ("answered",) if settings.drop_unanswerable_windows else ()
        return settings.doc_stride, settings.max_query_length, *answered

    def content_of(self, source: Path) -> str:
        """Return the hash of a dataset."""
        return fingerprint_of_content(content_of(source))


FORM = SquadForm()


def find_features(path: Path, split: str, seq_len: int) -> SquadFeatures:
    """Open features whose windows have up to `seq_len` tokens."""
    features = FORM.open(path, split)
    longest = features.settings.max_seq_length
    if longest != seq_len:
        raise InputError(
            "data-mismatch",
            f"the windows in {path} have up to {longest} tokens, not {seq_len}: use {longest}, or create others with "
            f"`{FORM.command('training', max_seq_length=seq_len)}`",
        )
    return features
