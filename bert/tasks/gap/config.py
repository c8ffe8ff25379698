"""Options of `bertbench data gap`, checked."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from bert.data.features import check_inputs, split_by_name
from common.errors import UsageError

Split = Literal["training", "validation", "test"]
_WORDS = {"training": ("train", "dev"), "validation": ("valid",), "test": ("test", "eval")}
SPECIAL_TOKENS = 2
"""[CLS] and [SEP]."""
MENTIONS = 3
"""The pronoun and two names."""
DEFAULT_LENGTH = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class GapConfig:
    """GAP's TSVs in, a file of features for each out; a call with the same options keeps what is finished."""

    input: tuple[Path, ...]
    """TSV files of GAP; rows to predict need no A-coref and B-coref."""
    vocab: Path
    """BERT vocab.txt."""
    output: Path = Path("runs/gap")
    """Folder for the features, and for a TSV of the tokens of each."""
    split: Split | None = None
    """Split of the inputs; default from their names, those with development for training."""
    lower_case: bool = True
    """Text is lower-cased, as for uncased models; --no-lower-case keeps case, for a cased vocabulary."""
    max_seq_length: int = DEFAULT_LENGTH
    """Maximum tokens, [CLS] and [SEP] included; longer texts are cut around the three mentions."""

    def __post_init__(self) -> None:
        """Refuse options no features can be made with."""
        check_inputs(self.input, self.split, "GAP.tsv: development, validation or test of GAP, or a file of that form")
        smallest = MENTIONS + SPECIAL_TOKENS
        if self.max_seq_length < smallest:
            raise UsageError(
                "option-value",
                f"--max-seq-length {self.max_seq_length} has no room for three mentions: give {smallest}",
            )

    def split_of(self, path: Path) -> Split:
        """Return what the features of a file are for. Raises UsageError: its name does not say."""
        return self.split or cast(Split, split_by_name(path, _WORDS))
