"""`bertbench data gap`: TSVs to files of features. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from bert.data.features import Columns, Summary, prepare_features, vocabulary_settings
from bert.data.finished import Counts
from bert.data.pool import Progress
from bert.data.rows import Int64, Ragged
from bert.data.vocabulary import Vocabulary, load_vocabulary
from bert.tasks.gap.config import SPECIAL_TOKENS, GapConfig, Split
from bert.tasks.gap.features import GENDER_NAMES, MENTION_ENDS, MENTION_STARTS, Settings, open_features, write_readable
from bert.tasks.gap.reading import LABEL_COLUMNS, GapExample, GapFile, LeftOut, in_words, read_gap
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


def _around(text: TokenText, more: int) -> npt.NDArray[np.bool_]:
    """Return which tokens are in a mention or up to `more` before or behind one [T]."""
    kept = np.zeros(len(text.ids), np.bool_)
    for start, end in zip(text.starts.tolist(), text.ends.tolist(), strict=True):
        kept[max(0, start - more) : end + more] = True
    return kept


def prepare(config: GapConfig, progress: Progress) -> list[Summary]:
    """Make the features of each input; those that are finished are kept.

    Args:
        config: what to make.
        progress: called with the number of finished files.

    Raises:
        InputError: an input or the vocabulary is not as it must be, or no row can be used.
        UsageError: the split of an input is ambiguous.
        StorageError: the output cannot be written.
    """
    splits = [config.split_of(path) for path in config.input]
    files = [read_gap(path) for path in config.input]
    vocabulary = load_vocabulary(config.vocab, config.lower_case)
    summaries: list[Summary] = []
    for file, split in zip(files, splits, strict=True):
        progress("features of GAP", len(summaries), len(files))
        summaries.append(_prepare(config, file, split, vocabulary))
    progress("features of GAP", len(files), len(files))
    return summaries


def _prepare(config: GapConfig, file: GapFile, split: Split, vocabulary: Vocabulary) -> Summary:
    settings = Settings(split=split, **vocabulary_settings(vocabulary), max_seq_length=config.max_seq_length)
    summary = prepare_features(
        config.output,
        settings,
        file.path,
        file.fingerprint,
        config.vocab,
        vocabulary,
        lambda: _features(file, settings, vocabulary),
    )
    assert summary.features is not None
    readable = summary.features.with_suffix(".tsv")
    if not readable.is_file():
        write_readable(readable, open_features(summary.features, split), vocabulary)
    return summary


def _features(file: GapFile, settings: Settings, vocabulary: Vocabulary) -> tuple[Columns, Counts]:
    examples, left_out = _usable(file, settings.split)
    counts = Counts({"rows": len(file.examples) + len(file.left_out)})
    used: list[tuple[GapExample, TokenText]] = []
    for example, text in zip(examples, tokenize(examples, vocabulary), strict=True):
        counts.add("tokens", len(text.ids))
        counts.add("unknown tokens", int(np.count_nonzero(text.ids == vocabulary.ids["[UNK]"])))
        short = None if (text.starts == text.ends).any() else fit(text, settings.max_seq_length)
        if short is None:
            why = f"a mention has no word pieces, or all more than {settings.max_seq_length}"
            left_out.append(LeftOut(example.line, example.id, why))
            continue
        counts.add("windowed", len(short.ids) < len(text.ids), example.id)
        counts.add(f"pronouns: {example.gender or 'of no gender'}")
        used.append((example, short))
    left_out.sort()
    if not used:
        raise InputError("rows-invalid", f"no row of {file.path} is usable: {in_words(left_out)}")
    counts.add("features", len(used))
    for row in left_out:
        counts.add("left out", 1, in_words([row]))
    return _columns(used, left_out, vocabulary), counts


def _usable(file: GapFile, split: Split) -> tuple[list[GapExample], list[LeftOut]]:
    """Return the rows to make features of, and those left out: without a label, where others have one.

    Raises:
        InputError: rows to train on have no labels.
    """
    labelled = [example for example in file.examples if example.label is not None]
    if not labelled and split != "training":
        return list(file.examples), list(file.left_out)
    if not labelled:
        raise InputError(
            "columns-missing",
            f"{file.path} has no answers in {' and '.join(LABEL_COLUMNS)}, which training needs: give "
            "gap-development.tsv, or --split test to predict",
        )
    unlabelled = [LeftOut(one.line, one.id, "it has no label") for one in file.examples if one.label is None]
    return labelled, [*file.left_out, *unlabelled]


def _columns(
    used: Sequence[tuple[GapExample, TokenText]], left_out: Sequence[LeftOut], vocabulary: Vocabulary
) -> Columns:
    narrow = np.uint16 if len(vocabulary.pieces) <= np.iinfo(np.uint16).max else np.int32
    examples, texts = zip(*used, strict=True)
    ids = Ragged.of([[vocabulary.cls_id, *text.ids.tolist(), vocabulary.sep_id] for text in texts], narrow)
    labels = [example.label for example in examples]
    names = {example.id for example in examples}
    example_ids = Ragged.of_texts(example.id for example in examples)
    absent = Ragged.of_texts(dict.fromkeys(row.id for row in left_out if row.id and row.id not in names))
    return {
        "input_ids.values": ids.values,
        "input_ids.offsets": ids.offsets,
        "example_ids.values": example_ids.values,
        "example_ids.offsets": example_ids.offsets,
        "left_out.values": absent.values,
        "left_out.offsets": absent.offsets,
        # The token before all others is [CLS].
        MENTION_STARTS: (np.concatenate([text.starts for text in texts]) + 1).astype(np.int32),
        MENTION_ENDS: (np.concatenate([text.ends for text in texts]) + 1).astype(np.int32),
        "labels": np.array([] if None in labels else labels, np.int64),
        "genders": np.array([GENDER_NAMES.index(example.gender) for example in examples], np.uint8),
    }
