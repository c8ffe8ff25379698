"""What a preparation of GAP is asked for: the options of `bertbench data gap`, checked."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from common.errors import UsageError

Split = Literal["training", "validation", "test"]
SPLITS: tuple[Split, ...] = ("training", "validation", "test")
_WORDS: dict[Split, tuple[str, ...]] = {
    "training": ("train", "dev"),
    "validation": ("valid",),
    "test": ("test", "eval"),
}
SPECIAL_TOKENS = 2
"""[CLS] and [SEP]."""
MENTIONS = 3
"""The pronoun and two names."""
DEFAULT_LENGTH = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class GapConfig:
    """GAP's TSVs in, a file of features for each out; a call with the same options keeps what is finished."""

    input: tuple[Path, ...]
    """TSVs of GAP; those to predict need no A-coref and B-coref."""
    vocab: Path
    """BERT vocab.txt."""
    output: Path = Path("runs/gap")
    """Folder for the features, and a TSV of the tokens beside each."""
    split: Split | None = None
    """What they are for: training validation test; default by the input's name, *development* being for training."""
    lower_case: bool = True
    """Text is lower-cased, as for bert-*-uncased; --no-lower-case keeps capitals, for a cased vocabulary."""
    max_seq_length: int = DEFAULT_LENGTH
    """Tokens at most, [CLS] and [SEP] included; of longer texts stays what is around the three mentions."""

    def __post_init__(self) -> None:
        """Refuse options no features can be made with."""
        if not self.input:
            raise UsageError(
                "option-missing", "give --input GAP.tsv: development, validation or test of GAP, or a file of that form"
            )
        if self.split is not None and len(self.input) > 1:
            raise UsageError(
                "option-conflict",
                f"--split {self.split} is for one --input, and these are {len(self.input)}: give it alone",
            )
        smallest = MENTIONS + SPECIAL_TOKENS
        if self.max_seq_length < smallest:
            raise UsageError(
                "option-value",
                f"--max-seq-length {self.max_seq_length} has no place for a pronoun, two names and {SPECIAL_TOKENS} "
                f"special tokens: give {smallest} or more",
            )

    def split_of(self, path: Path) -> Split:
        """Return what the features of a file are for. Raises UsageError: its name does not say."""
        if self.split is not None:
            return self.split
        name = path.name.lower()
        found = [split for split, words in _WORDS.items() if any(word in name for word in words)]
        if len(found) != 1:
            words = "; ".join(f"{' or '.join(some)} for {split}" for split, some in _WORDS.items())
            why = f"it says {' and '.join(found)}" if found else "it has none of the words that would tell it"
            raise UsageError(
                "option-missing",
                f"what {path.name} is for cannot be told from its name, {why} ({words}): give --split "
                f"{' | '.join(SPLITS)}, or another name",
            )
        return found[0]
