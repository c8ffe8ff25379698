"""What a preparation ended with, and what a user should know about its input."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert.data.vocabulary import Vocabulary, casing_note


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
    """Maximum masked positions per instance."""
    folder: Path
    training_instances: int
    test_instances: int
    padding_efficiency: float | None
    """Real tokens / all tokens, over all shards; None if no shard is finished."""
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
    """The shards of each sequence length; empty if the call ended before them."""
    documents: int | None
    """Documents of the corpus; None if the call did not read them."""
    sentences: int | None
    """Sentences of the corpus; None if the call did not read them."""
    vocab_size: int | None
    """Word pieces; None if the call ended before they were needed."""
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


MOST_UNKNOWN = 0.01
"""Share of [UNK] above which a vocabulary does not fit the text."""
# What was counted -> the sentence that says so; {count} and {names} are filled in.
_SENTENCES = {
    "truncated dumps": "{count} dump(s) are truncated; their complete pages were used: {names}",
    "pages that are no valid XML, left out": "{count} page(s) are not valid XML and were skipped: {names}",
    "pages over 1 MiB, cut before they were parsed": "{count} very long page(s) were parsed in pieces: {names}",
    "tables that are never closed": "{count} unclosed table(s) were closed at the next heading or paragraph: {names}",
    "control characters taken out": "{count} character(s) forbidden in XML were removed",
    "latin-1 files": "{count} file(s) are not UTF-8 and were read as latin-1: {names}",
    "windows-1252 files": "{count} file(s) are not UTF-8 and were read as windows-1252: {names}",
    "UTF-16 files": "{count} file(s) are UTF-16: {names}",
    "UTF-32 files": "{count} file(s) are UTF-32: {names}",
    "damaged UTF-8 files": "{count} file(s) are damaged UTF-8; some characters became U+FFFD: {names}",
    "empty files": "{count} empty file(s) were skipped: {names}",
    "NUL bytes": "{count} NUL byte(s) were removed",
    "Gutenberg frames": "the Project Gutenberg header and footer of {count} file(s) were removed",
    "cut paragraphs": "{count} paragraph(s) of over a million characters were split",
    "cut sentences": "{count} sentence(s) of over 4,096 characters were split",
    "shards with one document": "{count} shard(s) hold a single document, so their random segments come from it too; "
    "use fewer --shards",
    "shards tokenized with tokenizers": "{count} shard(s) were tokenized with tokenizers: install nanotoken for the "
    "same ids in less time",
}


def notes_of(
    stages: Sequence[StageSummary], replaced: int, vocabulary: Vocabulary | None, changed: Sequence[Path] = ()
) -> Iterator[str]:
    """Yield the notes on a call.

    Args:
        stages: what its stages met.
        replaced: files of other settings or input that were removed.
        vocabulary: what the text was tokenized with, if it was.
        changed: files that were changed since they were finished.
    """
    if replaced:
        yield f"{replaced} file(s) with different settings or input were replaced"
    if changed:
        more = f" and {len(changed) - 1:,} more" if len(changed) > 1 else ""
        yield f"{changed[0]}{more} had changed in size and was created again"
    casing = None if vocabulary is None else casing_note(vocabulary)
    if casing is not None:
        yield casing
    for stage in stages:
        for name, sentence in _SENTENCES.items():
            count = stage.counts.get(name, 0)
            if count:
                examples = stage.examples.get(name, ())
                names = ", ".join(examples) + (", ..." if len(examples) < count else "")
                yield sentence.format(count=f"{count:,}", names=names)
        unknown = stage.counts.get("unknown tokens", 0) / max(1, stage.counts.get("tokens", 0))
        if unknown > MOST_UNKNOWN:
            yield (
                f"{100 * unknown:.1f} % of the tokens are [UNK]: check that the vocabulary fits the language and casing"
            )
