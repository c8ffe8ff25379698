"""The feature file of GAP, and a readable TSV beside it. Imports no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from bert.data.features import FeatureSettings, read_features
from bert.data.rows import Ragged, TokenRows
from bert.data.vocabulary import Vocabulary
from bert.tasks.gap.reading import FEMININE, LABELS, MASCULINE
from common.atomic import write_text

Split = Literal["training", "validation", "test"]
MENTIONS = 3
"""The pronoun and two names."""
DEFAULT_LENGTH = 512
GENDER_NAMES = (None, MASCULINE, FEMININE)
"""What the numbers in GapFeatures.genders stand for."""
MENTION_STARTS, MENTION_ENDS = "mention_starts", "mention_ends"
"""Columns of the rows [N, 3]: the first token of pronoun, A and B in the row, and one past the last token of each."""
_READABLE_COLUMNS = ["ID", "label", "gender", "tokens", "P-first", "P-last", "A-first", "A-last", "B-first", "B-last"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings(FeatureSettings):
    """Settings of GAP features."""

    split: Split
    """What they are for: training (every row has a label), validation or test."""

    @property
    def kind(self) -> str:
        """Split."""
        return f"gap-{self.split}"


@dataclass(frozen=True, slots=True)
class GapFeatures:
    """The rows of a file."""

    path: Path
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


def open_features(path: Path, split: str) -> GapFeatures:
    """Read features: a file of any split, or the only one of this split in a folder. Raises InputError, SchemaError."""
    file = read_features(path, f"gap-{split}" if path.is_dir() else "gap")
    settings = Settings(**file.header.settings)
    ids = file.ragged("input_ids")
    mentions = {name: file.columns[name].reshape(-1, MENTIONS) for name in (MENTION_STARTS, MENTION_ENDS)}
    rows = TokenRows(
        ids=ids,
        second=ids.lengths,
        labels=file.columns["labels"],
        columns={name: column.astype(np.int64) for name, column in mentions.items()},
        fingerprint=file.header.fingerprint,
        vocab_size=settings.vocab_size,
        vocabulary=settings.vocabulary,
        pad_id=settings.pad_id,
        max_seq_length=settings.max_seq_length,
    )
    example_ids, left_out = file.ragged("example_ids"), file.ragged("left_out")
    return GapFeatures(file.path, settings, rows, example_ids, file.columns["genders"], left_out)


def write_readable(path: Path, features: GapFeatures, vocabulary: Vocabulary) -> None:
    """Write the rows as a TSV: P is the pronoun, positions count from 0 = [CLS]. Raises StorageError."""
    rows = features.rows
    starts, ends = rows.columns[MENTION_STARTS], rows.columns[MENTION_ENDS] - 1
    lines = ["\t".join(_READABLE_COLUMNS)]
    for number, name in enumerate(features.example_ids.texts()):
        label = LABELS[int(rows.labels[number])] if rows.has_labels else ""
        gender = GENDER_NAMES[int(features.genders[number])] or ""
        tokens = " ".join(vocabulary.pieces[token] for token in rows.ids[number].tolist())
        places = np.stack([starts[number], ends[number]], axis=1).ravel().tolist()
        lines.append("\t".join([name, label, gender, tokens, *map(str, places)]))
    write_text(path, "\n".join(lines) + "\n")
