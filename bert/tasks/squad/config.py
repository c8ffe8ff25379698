"""Options of `bertbench data squad`, checked."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bert.data.features import check_inputs, split_by_name
from bert.tasks.squad.windows import SPECIAL_TOKENS
from common.errors import UsageError
from common.flags import flag

Mode = Literal["merge", "spill"]
_WORDS = {"training": ("train",), "evaluation": ("dev", "test", "valid", "eval")}


@dataclass(frozen=True, kw_only=True, slots=True)
class SquadConfig:
    """SQuAD's JSON in, files of windows out; a call with the same options keeps what is finished."""

    input: tuple[Path, ...]
    """SQuAD 1.1 or 2.0 files, JSON or .gz; each becomes one file of features."""
    vocab: Path
    """BERT vocab.txt."""
    output: Path = Path("runs/squad")
    """Folder for the features."""
    split: Literal["training", "evaluation"] | None = None
    """Split of the inputs; default from their names: train, or dev, test, valid, eval in them."""
    squad_version: Literal["auto", "1.1", "2.0"] = "auto"
    """Required version of the input; auto accepts both."""
    lower_case: bool = True
    """Text is lower-cased, as for uncased models; --no-lower-case keeps case, for a cased vocabulary."""
    max_seq_length: int = 384
    """Maximum tokens of a window: [CLS] question [SEP] document [SEP]."""
    doc_stride: int = 128
    """Document tokens between the starts of two windows."""
    max_query_length: int = 64
    """Maximum word pieces of the question; longer questions are truncated."""
    drop_unanswerable_windows: bool = False
    """Skip windows of a training question that do not contain its whole answer."""
    mode: Mode = "merge"
    """How workers pass on results: merge through memory, spill through files. The result is the same."""
    workers: int | None = None
    """Worker processes, at most the number of CPUs; default CPUs - 1, or 1 for a small input."""

    def __post_init__(self) -> None:
        """Refuse invalid options."""
        check_inputs(self.input, self.split, "DATASET.json: SQuAD 1.1 or 2.0 (`bertbench data download squad` gets it)")
        for name in ("doc_stride", "max_query_length", "workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError("option-value", f"{flag(name)} {value} must be at least 1")
        smallest = self.max_query_length + SPECIAL_TOKENS + 1
        if self.max_seq_length < smallest:
            raise UsageError(
                "option-value",
                f"--max-seq-length {self.max_seq_length} has no room for --max-query-length {self.max_query_length}, "
                f"{SPECIAL_TOKENS} special tokens and a document: give {smallest} or more",
            )
        if self.drop_unanswerable_windows and self.split == "evaluation":
            raise UsageError(
                "option-conflict", "--drop-unanswerable-windows is for training: an evaluation needs every window"
            )

    def split_of(self, path: Path) -> str:
        """Return what the features of a file are for. Raises UsageError: its name does not say."""
        return self.split or split_by_name(path, _WORDS)


def cpu_count() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
