"""The feature file of GAP, and a readable TSV beside it. Imports no torch."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bert.data.columns import IDS, TEXT, Column, Columns
from bert.data.features import FeatureForm, FeatureSettings
from bert.data.rows import Ragged, TokenRows
from bert.data.vocabulary import Vocabulary
from bert.tasks.gap.config import DEFAULT_LENGTH, MENTIONS, Split
from bert.tasks.gap.reading import FEMININE, LABELS, MASCULINE
from common.atomic import write_text

GENDER_NAMES = (None, MASCULINE, FEMININE)
"""What the numbers in GapFeatures.genders stand for."""
MENTION_STARTS, MENTION_ENDS = "mention_starts", "mention_ends"
"""Columns of the rows [N, 3]: the first token of pronoun, A and B in the row, and one past the last token of each."""
READABLE = ".tsv"
"""Ending of the readable file beside the features."""
READABLE_COLUMNS = (
    *("ID", "label", "gender", "tokens"),
    *("P-first", "P-last", "A-first", "A-last", "B-first", "B-last"),
)
"""Of the TSV beside the features; P is the pronoun, positions count from 0 = [CLS]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings(FeatureSettings):
    """Settings of GAP features."""

    split: Split
    """What they are for: training (every row has a label), validation or test."""
    max_seq_length: int = DEFAULT_LENGTH


@dataclass(frozen=True, slots=True)
class GapFeatures:
    """The rows of a file, all columns read-only (mapped from the file where it was read from one)."""

    settings: Settings
    rows: TokenRows
    """[CLS] text [SEP] and the class of each [N], with the columns MENTION_STARTS and MENTION_ENDS."""
    example_ids: Ragged
    """Ids, UTF-8 bytes [N], in the order of the TSV."""
    genders: npt.NDArray[np.uint8]
    """Of the pronouns, indices of GENDER_NAMES [N]."""
    left_out: Ragged
    """Ids of rows of the TSV that could not be used, UTF-8 bytes."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    @property
    def fingerprint(self) -> str:
        """Return a hash of the settings and the TSV's content."""
        return self.rows.fingerprint

    def ids(self) -> list[str]:
        """Return the id of each row."""
        return [self.example_ids.text(number) for number in range(len(self))]

    def left_out_ids(self) -> list[str]:
        """Return the ids of the rows that could not be used."""
        return [self.left_out.text(number) for number in range(len(self.left_out))]


_COLUMNS = {
    "input_ids": Column("row", IDS, "ragged"),
    "example_ids": Column("row", TEXT, "ragged"),
    MENTION_STARTS: Column("row", ("<i4",), width=MENTIONS),
    MENTION_ENDS: Column("row", ("<i4",), width=MENTIONS),
    "labels": Column("row", ("<i8",), optional=True),
    "genders": Column("row", ("|u1",)),
    "left_out": Column("row left out", TEXT, "ragged"),
}
_INPUTS = {
    "training": "gap-development.tsv",
    "validation": "gap-validation.tsv",
    "test": "gap-test.tsv",
    "": "GAP.tsv",
}


class GapForm(FeatureForm[Settings, GapFeatures]):
    """Feature files of GAP."""

    task = "gap"
    title = "GAP"
    settings = Settings
    columns = _COLUMNS
    inputs = _INPUTS
    any_split = True
    tells_counts = False

    def whole(self, settings: Settings, fingerprint: str, further: str, columns: Columns) -> GapFeatures:
        """Make features of columns."""
        ragged = {
            name: Ragged(columns[f"{name}.values"], columns[f"{name}.offsets"])
            for name in ("input_ids", "example_ids", "left_out")
        }
        ids, labels = ragged["input_ids"], columns["labels"]
        mentions = {name: columns[name].reshape(-1, MENTIONS) for name in (MENTION_STARTS, MENTION_ENDS)}
        starts, ends = mentions.values()
        inside = (starts >= 1) & (starts < ends) & (ends < ids.lengths[:, None])
        if not inside.all() or (len(labels) and not 0 <= labels.min() <= labels.max() < len(LABELS)):
            raise ValueError("its mentions or labels are invalid")
        if (columns["genders"] >= len(GENDER_NAMES)).any():
            raise ValueError("its genders are invalid")
        rows = TokenRows(
            ids=ids,
            second=ids.lengths,
            labels=labels,
            columns={name: column.astype(np.int64) for name, column in mentions.items()},
            fingerprint=fingerprint,
            vocab_size=settings.vocab_size,
            vocabulary=settings.vocabulary,
            pad_id=int(further),
            max_seq_length=settings.max_seq_length,
        )
        return GapFeatures(settings, rows, ragged["example_ids"], columns["genders"], ragged["left_out"])


FORM = GapForm()


def write_readable(path: Path, features: GapFeatures, vocabulary: Vocabulary) -> None:
    """Write the rows as a TSV beside the features `path`, tokens as pieces. Raises StorageError."""
    rows = features.rows
    starts, ends = rows.columns[MENTION_STARTS], rows.columns[MENTION_ENDS] - 1
    lines = ["\t".join(READABLE_COLUMNS)]
    for number, name in enumerate(features.ids()):
        label = LABELS[int(rows.labels[number])] if rows.has_labels else ""
        gender = GENDER_NAMES[int(features.genders[number])] or ""
        tokens = " ".join(vocabulary.pieces[token] for token in rows.ids[number].tolist())
        places = np.stack([starts[number], ends[number]], axis=1).ravel().tolist()
        lines.append("\t".join([name, label, gender, tokens, *map(str, places)]))
    write_text(path.with_suffix(READABLE), "\n".join(lines) + "\n")
