"""What a preparation ended with, and what a user should know about its input."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class StageSummary:
    """One stage of this call."""

    stage: str
    folder: Path
    """Where its files are."""
    files: int
    """Files it has; for a part, those that are finished."""
    kept: bool
    complete: bool
    """All its files are there; False while other parts are at work."""
    seconds: float
    counts: dict[str, int]
    examples: dict[str, list[str]]
    """The first few files, pages or documents it met something in, by the name of the count."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthSummary:
    """The shards of one sequence length."""

    seq_len: int
    """Tokens per instance."""
    max_predictions: int
    """Masked positions per instance at most."""
    folder: Path
    training_instances: int
    test_instances: int
    padding_efficiency: float | None
    """Real tokens / all tokens, over all shards; None where no shard is finished."""
    shards: int
    """Shards, training and test; for a part, those that are finished."""
    shards_kept: int
    """Of these, shards that were finished before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareSummary:
    """What a preparation ended with."""

    dataset: str
    stages: tuple[StageSummary, ...]
    """The stages of this call, in order."""
    lengths: tuple[LengthSummary, ...]
    """The shards of each sequence length; empty where the call ended before them."""
    documents: int | None
    """Documents of the corpus; None where the call did not read them."""
    sentences: int | None
    """Sentences of the corpus; None where the call did not read them."""
    vocab_size: int | None
    """Word pieces; None where the call ended before they were needed."""
    vocab_path: Path | None
    vocab_trained: bool
    notes: tuple[str, ...]
    """What a user should know about the input."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        plain: dict[str, Any] = _plain(dataclasses.asdict(self))
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
