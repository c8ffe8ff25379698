"""`bertbench data gap`: TSVs to files of features. Imports no torch."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.data.columns import Columns
from bert.data.finished import Counts
from bert.data.pool import Progress
from bert.data.preparation import Source, Summary, keep_or_make, new_folder, unknown_tokens, vocabulary_notes
from bert.data.rows import Int64
from bert.data.vocabulary import Vocabulary, load_vocabulary
from bert.tasks.gap.config import SPECIAL_TOKENS, GapConfig
from bert.tasks.gap.features import FORM, GENDER_NAMES, MENTION_ENDS, MENTION_STARTS, READABLE, Settings, write_readable
from bert.tasks.gap.reading import Flaw, GapExample, GapFile, Mention, read_gap, told_flaws
from common.errors import InputError


@dataclass(frozen=True, slots=True)
class TokenText:
    """A text as tokens."""

    ids: Int64
    """Word pieces, without special ones [T]."""
    starts: Int64
    """Number of the first token of pronoun, A and B [3]."""
    ends: Int64
    """One past the last token of each [3]; as its start where a mention has no pieces."""


def tokenize(examples: Sequence[GapExample], vocabulary: Vocabulary) -> list[TokenText]:
    """Return the tokens of each example's text, and where its mentions are among them."""
    cuts = [_cuts(example) for example in examples]
    pieces = [
        example.text[begin:end]
        for example, places in zip(examples, cuts, strict=True)
        for begin, end in pairwise(places)
    ]
    encoded = vocabulary.tokenizer.encode(pieces)
    ends = encoded.offsets.tolist()
    found, number = [], 0
    for example, places in zip(examples, cuts, strict=True):
        begin, number = number, number + len(places) - 1
        before = {place: end - ends[begin] for place, end in zip(places, ends[begin : number + 1], strict=True)}
        found.append(
            TokenText(
                encoded.values[ends[begin] : ends[number]].astype(np.int64),
                np.array([before[mention.offset] for mention in example.mentions], np.int64),
                np.array([before[mention.end] for mention in example.mentions], np.int64),
            )
        )
    return found


def _cuts(example: GapExample) -> list[int]:
    inner = {place for mention in example.mentions for place in (mention.offset, mention.end)}
    return sorted({0, len(example.text)} | inner)


def fit(text: TokenText, max_seq_length: int) -> TokenText | None:
    """Return a text of at most max_seq_length - 2 tokens; None if the mentions alone are longer.

    Of a longer text stays one window, with the mentions in its middle. Where they lie too far apart for that, as many
    tokens stay on both sides of each as there is place for, and what is between is left out.
    """
    most = max_seq_length - SPECIAL_TOKENS
    count = len(text.ids)
    if count <= most:
        return text
    first, last = int(text.starts.min()), int(text.ends.max())
    if last - first <= most:
        begin = min(max(0, first - (most - (last - first)) // 2), count - most)
        kept = np.zeros(count, np.bool_)
        kept[begin : begin + most] = True
    else:
        kept = _around(text, 0)
        if kept.sum() > most:
            return None
        fewest, too_many = 0, count
        while too_many - fewest > 1:
            middle = (fewest + too_many) // 2
            fewest, too_many = (middle, too_many) if _around(text, middle).sum() <= most else (fewest, middle)
        kept = _around(text, fewest)
    before = np.concatenate([[0], np.cumsum(kept)])
    return TokenText(text.ids[kept], before[text.starts], before[text.ends])


def _around(text: TokenText, more: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which tokens are in a mention or up to `more` before or behind one [T]."""
    kept = np.zeros(len(text.ids), np.bool_)
    for start, end in zip(text.starts.tolist(), text.ends.tolist(), strict=True):
        kept[max(0, start - more) : end + more] = True
    return kept


_BATCH = 500
"""Rows that are tokenized at once."""
_MOST_TOLD = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class GapSummary(Summary):
    """Result for one TSV."""

    TOLD = ("input", "features", "settings", "kept", "counts", "left_out", "notes", "seconds")

    features: Path
    """The feature file; the readable TSV is beside it."""
    settings: Settings
    flaws: tuple[Flaw, ...]


def prepare(config: GapConfig, progress: Progress) -> list[GapSummary]:
    """Make the features of each input; those that are finished are kept.

    Args:
        config: what to make.
        progress: called with the number of finished rows.

    Raises:
        InputError: an input or the vocabulary is not as it must be, or no row can be used.
        UsageError: the split of an input is ambiguous.
        StorageError: the output cannot be written.
    """
    files = [read_gap(path) for path in config.input]
    splits = [config.split_of(path) for path in config.input]
    vocabulary = load_vocabulary(config.vocab, config.lower_case)
    settings = [
        Settings(
            split=split,
            lower_case=config.lower_case,
            vocabulary=vocabulary.fingerprint,
            vocab_size=len(vocabulary.pieces),
            max_seq_length=config.max_seq_length,
        )
        for split in splits
    ]
    made = [_features(file, own, vocabulary, progress) for file, own in zip(files, settings, strict=True)]
    with new_folder(config.output):
        return [_written(config, *one, vocabulary) for one in zip(files, settings, made, strict=True)]


@dataclass(frozen=True, slots=True)
class _Made:
    """Features of one file, and its counts."""

    columns: Columns
    counts: Counts
    flaws: tuple[Flaw, ...]
    seconds: float


def _written(config: GapConfig, file: GapFile, settings: Settings, made: _Made, vocabulary: Vocabulary) -> GapSummary:
    began = time.monotonic()
    notes = _notes(file, made, config.vocab)
    source = Source(
        content=file.fingerprint,
        settings=settings,
        origin={"input": str(file.path.resolve())},
        make=lambda: ([made.columns], made.counts),
        beside=READABLE,
        make_beside=lambda path: write_readable(path, FORM.read(path), vocabulary),
    )
    features, _, kept = keep_or_make(FORM, config.output, source, vocabulary, config.vocab, notes)
    return GapSummary(
        input=file.path,
        features=features,
        settings=settings,
        kept=kept,
        # Those of the file are of the version that made it.
        counts=made.counts,
        flaws=made.flaws,
        notes=(*notes, *vocabulary_notes(vocabulary)),
        seconds=made.seconds + time.monotonic() - began,
    )


def _features(file: GapFile, settings: Settings, vocabulary: Vocabulary, progress: Progress) -> _Made:
    began = time.monotonic()
    examples, flaws = _usable(file, settings)
    counts, kept, fitted = Counts({"rows": len(file.examples) + len(file.flaws)}), list[GapExample](), list[TokenText]()
    title = f"features of {file.path.name}"
    for first in range(0, len(examples), _BATCH):
        some = examples[first : first + _BATCH]
        for example, text in zip(some, tokenize(some, vocabulary), strict=True):
            flaw, short = _fit(example, text, settings.max_seq_length)
            counts.add("tokens", len(text.ids))
            counts.add("unknown tokens", int(np.count_nonzero(text.ids == vocabulary.ids["[UNK]"])))
            if short is None or flaw is not None:
                flaws += [flaw] if flaw else []
                continue
            if len(short.ids) < len(text.ids):
                counts.add("windowed", 1, example.place)
            kept.append(example)
            fitted.append(short)
        progress(title, min(first + _BATCH, len(examples)), len(examples))
    if not kept:
        raise InputError("rows-invalid", f"no row of {file.path} is usable: {'; '.join(told_flaws(flaws))}")
    columns = _columns(kept, fitted, flaws, vocabulary)
    counts.add("features", len(kept))
    counts.add("left out", len(flaws))
    for example in kept:
        counts.add(f"pronouns: {example.gender or 'of no gender'}", 1, None if example.gender else example.place)
    return _Made(columns, counts, tuple(sorted(flaws, key=lambda flaw: flaw.line)), time.monotonic() - began)


def _usable(file: GapFile, settings: Settings) -> tuple[list[GapExample], list[Flaw]]:
    """Return the rows to make features of, and the flaws of the others. Raises InputError: answers are missing."""
    flaws, kept = list(file.flaws), []
    unanswered = [
        Flaw(e.line, e.id, "missing labels", "A-coref and B-coref are not both given")
        for e in file.examples
        if None in (e.a_coref, e.b_coref)
    ]
    if settings.split == "training" and not file.labelled:
        raise InputError(
            "columns-missing",
            f"{file.path} lacks the columns A-coref and B-coref, which training needs: give gap-development.tsv, or "
            "--split test to predict with",
        )
    if settings.split != "training" and len(unanswered) == len(file.examples):
        return list(file.examples), flaws
    if settings.split != "training" and unanswered:
        raise InputError(
            "labels-invalid",
            f"only some rows of {file.path} have answers: {'; '.join(told_flaws(unanswered))}; give "
            "all, or remove both columns to predict them",
        )
    for example in file.examples:
        if example.label is not None:
            kept.append(example)
        elif None not in (example.a_coref, example.b_coref):
            flaws.append(Flaw(example.line, example.id, "both names as the answer", "A-coref and B-coref are TRUE"))
    return kept, [*flaws, *unanswered]


def _fit(example: GapExample, text: TokenText, max_seq_length: int) -> tuple[Flaw | None, TokenText | None]:
    if (text.starts == text.ends).any():
        empty = example.mentions[int(np.flatnonzero(text.starts == text.ends)[0])]
        return Flaw(example.line, example.id, "a mention without word pieces", f"{empty.text[:40]!r}"), None
    short = fit(text, max_seq_length)
    if short is None:
        mentions = int((text.ends - text.starts).sum())
        detail = f"its mentions have {mentions} tokens"
        return Flaw(example.line, example.id, f"mentions beyond {max_seq_length} tokens", detail), None
    return None, short


def _columns(
    examples: Sequence[GapExample], fitted: Sequence[TokenText], flaws: Sequence[Flaw], vocabulary: Vocabulary
) -> Columns:
    narrow = np.uint16 if len(vocabulary.pieces) <= np.iinfo(np.uint16).max else np.int32
    rows = [[vocabulary.cls_id, *text.ids.tolist(), vocabulary.sep_id] for text in fitted]
    labels = [-1 if example.label is None else example.label for example in examples]
    names = {example.id for example in examples}
    absent = dict.fromkeys(flaw.id for flaw in flaws if flaw.id and flaw.id not in names)
    return {
        "input_ids.values": np.array([token for row in rows for token in row], narrow),
        "input_ids.rows": np.array([len(row) for row in rows], np.int64),
        **_texts("example_ids", [example.id for example in examples]),
        **_texts("left_out", list(absent)),
        # The token before all others is [CLS].
        MENTION_STARTS: (np.concatenate([text.starts for text in fitted]) + 1).astype(np.int32),
        MENTION_ENDS: (np.concatenate([text.ends for text in fitted]) + 1).astype(np.int32),
        "labels": np.array(labels if min(labels) >= 0 else [], np.int64),
        "genders": np.array([GENDER_NAMES.index(example.gender) for example in examples], np.uint8),
    }


def _texts(name: str, texts: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    content = [text.encode() for text in texts]
    return {
        f"{name}.values": np.frombuffer(b"".join(content), np.uint8),
        f"{name}.rows": np.array([len(text) for text in content], np.int64),
    }


def _notes(file: GapFile, made: _Made, vocab: Path) -> list[str]:
    counts = made.counts
    notes = [f"left out: {told}" for told in told_flaws(made.flaws)]
    notes += _ambiguous(file)
    if unknown := counts.get("pronouns: of no gender"):
        places = ", ".join(counts.names["pronouns: of no gender"])
        notes.append(f"{unknown:,} pronoun(s) other than he, his, him, she, her, hers: {places}")
    return [*notes, *unknown_tokens(counts, "unknown tokens", "tokens", vocab, "tokens")]


def _ambiguous(file: GapFile) -> list[str]:
    """Return which rows have mentions that stand where another one does: no model can tell those apart."""
    kinds = {
        "A and B at the same offset": [e for e in file.examples if e.a.offset == e.b.offset],
        "a name on the pronoun": [e for e in file.examples if _overlap(e.a, e.pronoun) or _overlap(e.b, e.pronoun)],
    }
    return [f"{len(found):,} row(s) have {kind}: {_places(found)}" for kind, found in kinds.items() if found]


def _overlap(one: Mention, other: Mention) -> bool:
    return one.offset < other.end and other.offset < one.end


def _places(examples: Sequence[GapExample]) -> str:
    more = ", ..." if len(examples) > _MOST_TOLD else ""
    return ", ".join(example.place for example in examples[:_MOST_TOLD]) + more
