"""What a file of GAP features holds, as columns. Imports no torch."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bert.data.ragged import Ragged
from bert.data.rows import TokenRows
from bert.tasks.gap.config import DEFAULT_LENGTH, Split
from bert.tasks.gap.examples import FEMININE, MASCULINE

GENDER_NAMES = (None, MASCULINE, FEMININE)
"""What the numbers in GapFeatures.genders stand for."""
MENTION_STARTS, MENTION_ENDS = "mention_starts", "mention_ends"
"""Columns of the rows [N, 3]: the first token of pronoun, A and B in the row, and one past the last token of each."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the columns depend on besides the content of the TSV."""

    split: Split
    """What they are for: training (every row has a label), validation or test."""
    lower_case: bool
    """Text is lower-cased and accents are stripped before it is cut into pieces."""
    vocabulary: str
    """Vocabulary.fingerprint."""
    vocab_size: int
    max_seq_length: int = DEFAULT_LENGTH
    """Tokens of a row at most."""


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
