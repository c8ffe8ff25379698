"""Rows of word pieces with a label each: what tasks on whole sequences read. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.data.ragged import Int64, Ragged
from common.errors import InputError

Labels = npt.NDArray[np.int64] | npt.NDArray[np.float32]

# What a batch has of its own.
_TAKEN = ("input_ids", "attention_mask", "token_type_ids", "labels")


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenRows:
    """N rows: [CLS] text [SEP], or [CLS] text [SEP] second text [SEP].

    Raises:
        InputError: columns of different lengths, a row that is empty or longer than max_seq_length, or a label of
            another kind.
    """

    ids: Ragged
    """Word pieces of each row, special ones included, without padding [N]."""
    second: Int64
    """Column at which segment 1 begins [N]; the length of the row where it has none."""
    labels: Labels
    """Class of each row, int64 from 0 on, or its value, float32 (regression) [N]; empty where they have no labels."""
    columns: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    """Further tensors of a row by the names a batch has them under, each [N, ...]."""
    fingerprint: str
    vocab_size: int
    """Word pieces of the vocabulary they were made with."""
    vocabulary: str
    """Hash of that vocabulary (bert.data.vocabulary.Vocabulary.fingerprint)."""
    pad_id: int
    """Id of [PAD]."""
    max_seq_length: int
    """Tokens of a row at most."""

    def __post_init__(self) -> None:
        """Refuse what no batch can be made of."""
        count = len(self.ids)
        sizes = {"second": len(self.second), **{name: len(column) for name, column in self.columns.items()}}
        sizes |= {"labels": len(self.labels)} if self.has_labels else {}
        wrong = [f"{name} {size:,}" for name, size in sizes.items() if size != count]
        if wrong:
            raise InputError(
                "rows-invalid", f"{count:,} rows have columns of other lengths ({', '.join(wrong)}): make them again"
            )
        taken = sorted(self.columns.keys() & set(_TAKEN))
        if taken:
            raise InputError(
                "rows-invalid",
                f"further columns of rows cannot be called {', '.join(taken)}: a batch has those already",
            )
        if self.labels.dtype not in (np.int64, np.float32):
            raise InputError(
                "labels-invalid", f"labels are int64 classes or float32 values, these are {self.labels.dtype}"
            )
        lengths = self.lengths
        if count and not 1 <= lengths.min() <= lengths.max() <= self.max_seq_length:
            raise InputError(
                "rows-invalid",
                f"rows have {lengths.min()} to {lengths.max()} tokens, 1 to {self.max_seq_length} (max_seq_length) "
                "are possible: make them again",
            )

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.ids)

    @property
    def lengths(self) -> Int64:
        """Tokens of each row [N]."""
        return self.ids.lengths

    @property
    def has_labels(self) -> bool:
        """Whether they can be trained on and evaluated on; else only predicted."""
        return len(self.labels) > 0
