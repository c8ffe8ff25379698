"""Options of `bertbench data csv`, checked. Imports no torch."""

from dataclasses import dataclass
from pathlib import Path

from common.errors import UsageError

SUFFIX = ".sqlite"
SPECIAL_TOKENS = 2
"""[CLS] and [SEP] of a row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CsvForm:
    """How a CSV is to be read."""

    text: str = "text"
    """Column of the texts."""
    label: str = "label"
    """Column of the labels."""
    encoding: str | None = None
    """Encoding of the file, such as utf-8, cp1252, utf-16; default detected and reported."""
    delimiter: str | None = None
    """Field delimiter: one character, or tab; default detected and reported."""
    quoting: bool = True
    """Quoted fields may contain delimiters and line breaks; --no-quoting treats quotes as plain text."""

    def __post_init__(self) -> None:
        """Refuse invalid options."""
        try:
            "".encode(self.encoding or "utf-8")
        except LookupError as error:
            raise UsageError(
                "option-value", f"--encoding {self.encoding!r}: {error}; give one such as utf-8"
            ) from error
        if self.separator is not None and (len(self.separator) != 1 or self.separator in '"\r\n'):
            raise UsageError("option-value", f"--delimiter {self.delimiter!r} must be one character, or the word tab")
        if self.text == self.label:
            raise UsageError("option-conflict", f"--text and --label are the same column {self.text!r}: give another")

    @property
    def separator(self) -> str | None:
        """The delimiter itself; None if it is to be detected."""
        return "\t" if self.delimiter in ("tab", "\\t") else self.delimiter


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
        for name in ("validation", "test"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise UsageError("option-value", f"--{name} {value} must be a fraction of at least 0 and below 1")
        if not self.validation + self.test < 1:
            raise UsageError(
                "option-conflict", f"--validation {self.validation} and --test {self.test} must add up to less than 1"
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
        least = SPECIAL_TOKENS + 1
        if self.max_seq_length < least:
            raise UsageError("option-value", f"--max-seq-length {self.max_seq_length} must be {least} or more")
        if self.database == self.input:
            raise UsageError("option-conflict", f"--output {self.database} is the input: give another file")

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.output or self.input.with_suffix(SUFFIX)
