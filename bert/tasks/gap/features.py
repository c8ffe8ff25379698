"""GAP's TSVs to files of features: texts cut into tokens, and around the mentions where they are long; a readable TSV
beside each. Imports no torch."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Literal, cast

import numpy as np
import numpy.typing as npt

from bert.data.features import (
    Columns,
    FeatureSettings,
    RowFeatures,
    Summary,
    check_inputs,
    prepare_features,
    read_features,
    split_by_name,
    vocabulary_settings,
)
from bert.data.finished import Counts
from bert.data.pool import Progress
from bert.data.rows import Int64, Ragged
from bert.data.vocabulary import Vocabulary, load_vocabulary
from bert.tasks.gap.reading import (
    FEMININE,
    LABEL_COLUMNS,
    LABELS,
    MASCULINE,
    GapExample,
    GapFile,
    LeftOut,
    in_words,
    read_gap,
)
from common.atomic import write_text
from common.errors import InputError, UsageError

Split = Literal["training", "validation", "test"]
MENTIONS = 3
"""The pronoun and two names."""
DEFAULT_LENGTH = 512
GENDER_NAMES = (None, MASCULINE, FEMININE)
"""What the numbers in the column `genders` stand for."""
MENTION_STARTS, MENTION_ENDS = "mention_starts", "mention_ends"
"""Columns of the rows [N, 3]: the first token of pronoun, A and B in the row, and one past the last token of each."""
_READABLE_COLUMNS = ["ID", "label", "gender", "tokens", "P-first", "P-last", "A-first", "A-last", "B-first", "B-last"]
SPECIAL_TOKENS = 2
"""[CLS] and [SEP]."""
_WORDS = {"training": ("train", "dev"), "validation": ("valid",), "test": ("test", "eval")}


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings(FeatureSettings):
    """Settings of GAP features; every row to train on has a label."""

    @property
    def kind(self) -> str:
        """Split."""
        return f"gap-{self.split}"


def open_features(path: Path, split: str) -> RowFeatures:
    """Read features: a file of any split, or the only one of this split in a folder.

    The rows are [CLS] text [SEP], with the columns MENTION_STARTS and MENTION_ENDS. `example_ids` of the file are their
    ids, `genders` indices of GENDER_NAMES [N], `left_out` the ids of rows of the TSV that could not be used. Raises
    InputError, SchemaError.
    """
    file = read_features(path, f"gap-{split}" if path.is_dir() else "gap")
    places = {name: file.columns[name].reshape(-1, MENTIONS) for name in (MENTION_STARTS, MENTION_ENDS)}
    columns = {name: column.astype(np.int64) for name, column in places.items()}
    return RowFeatures(file, file.token_rows("input_ids", columns=columns))


def write_readable(path: Path, features: RowFeatures, vocabulary: Vocabulary) -> None:
    """Write the rows as a TSV: P is the pronoun, positions count from 0 = [CLS]. Raises StorageError."""
    rows, genders = features.rows, features.file.columns["genders"].tolist()
    places = np.stack([rows.columns[MENTION_STARTS], rows.columns[MENTION_ENDS] - 1], axis=2).reshape(len(rows), -1)
    lines = ["\t".join(_READABLE_COLUMNS)]
    for number, name in enumerate(features.file.ragged("example_ids").texts()):
        label = LABELS[int(rows.labels[number])] if rows.has_labels else ""
        gender = GENDER_NAMES[genders[number]] or ""
        tokens = " ".join(vocabulary.pieces[token] for token in rows.ids[number].tolist())
        lines.append("\t".join([name, label, gender, tokens, *map(str, places[number].tolist())]))
    write_text(path, "\n".join(lines) + "\n")


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
    cuts = [
        sorted({0, len(example.text), *(place for one in example.mentions for place in (one.offset, one.end))})
        for example in examples
    ]
    pieces = [one.text[a:b] for one, places in zip(examples, cuts, strict=True) for a, b in pairwise(places)]
    encoded = vocabulary.tokens(pieces)
    texts, number = [], 0
    for example, places in zip(examples, cuts, strict=True):
        ends = encoded.offsets[number : number + len(places)]
        number += len(places) - 1
        before = dict(zip(places, (ends - ends[0]).tolist(), strict=True))
        starts, stops = np.array([(before[one.offset], before[one.end]) for one in example.mentions], np.int64).T
        texts.append(TokenText(encoded.values[ends[0] : ends[-1]].astype(np.int64), starts, stops))
    return texts


def fit(text: TokenText, max_seq_length: int) -> TokenText | None:
    """Return a text of at most max_seq_length - 2 tokens; None if the mentions alone are longer.

    Of a longer text stays one window, with the mentions in its middle. Where they lie too far apart for that, as many
    tokens stay on both sides of each as there is place for, and what is between is left out.
    """
    most, count = max_seq_length - SPECIAL_TOKENS, len(text.ids)
    if count <= most:
        return text
    first, last = int(text.starts.min()), int(text.ends.max())
    if last - first <= most:
        begin = min(max(0, first - (most - (last - first)) // 2), count - most)
        kept = np.zeros(count, np.bool_)
        kept[begin : begin + most] = True
    else:
        more = bisect_right(range(count), most, key=lambda more: int(_around(text, more).sum())) - 1
        if more < 0:
            return None
        kept = _around(text, more)
    before = np.concatenate([[0], np.cumsum(kept)])
    return TokenText(text.ids[kept], before[text.starts], before[text.ends])


def _around(text: TokenText, more: int) -> npt.NDArray[np.bool_]:
    """Return which tokens are in a mention or up to `more` before or behind one [T]."""
    kept = np.zeros(len(text.ids), np.bool_)
    for start, end in zip(text.starts.tolist(), text.ends.tolist(), strict=True):
        kept[max(0, start - more) : end + more] = True
    return kept


def prepare(config: GapConfig, progress: Progress) -> list[Summary]:
    """Make the features of each input; those that are finished are kept. `progress` gets the number of files done.

    Raises InputError, UsageError: an input, its split or the vocabulary is not as it must be; StorageError.
    """
    files = [(read_gap(path), config.split_of(path)) for path in config.input]
    vocabulary = load_vocabulary(config.vocab, config.lower_case)
    summaries: list[Summary] = []
    for file, split in files:
        progress("features of GAP", len(summaries), len(files))
        settings = Settings(split=split, **vocabulary_settings(vocabulary), max_seq_length=config.max_seq_length)
        make = partial(_features, file, settings, vocabulary)
        summary = prepare_features(config.output, settings, file.path, file.fingerprint, config.vocab, vocabulary, make)
        assert summary.features is not None
        readable = summary.features.with_suffix(".tsv")
        if not readable.is_file():
            write_readable(readable, open_features(summary.features, split), vocabulary)
        summaries.append(summary)
    progress("features of GAP", len(files), len(files))
    return summaries


def _features(file: GapFile, settings: Settings, vocabulary: Vocabulary) -> tuple[Columns, Counts]:
    """Return the columns of the rows that can be used; of a file with labels those that have one."""
    labelled = settings.split == "training" or any(example.label is not None for example in file.examples)
    counts = Counts({"rows": len(file.examples) + len(file.left_out)})
    left_out, used = list(file.left_out), []
    for example, text in zip(file.examples, tokenize(file.examples, vocabulary), strict=True):
        counts.add("tokens", len(text.ids))
        counts.add("unknown tokens", int(np.count_nonzero(text.ids == vocabulary.ids["[UNK]"])))
        short = None if (text.starts == text.ends).any() else fit(text, settings.max_seq_length)
        if labelled and example.label is None:
            left_out.append(LeftOut(example.line, example.id, f"it has no label in {' and '.join(LABEL_COLUMNS)}"))
        elif short is None:
            why = f"a mention has no word pieces, or all more than {settings.max_seq_length}"
            left_out.append(LeftOut(example.line, example.id, why))
        else:
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


def _columns(used: list[tuple[GapExample, TokenText]], left_out: list[LeftOut], vocabulary: Vocabulary) -> Columns:
    narrow = np.uint16 if len(vocabulary.pieces) <= np.iinfo(np.uint16).max else np.int32
    examples, texts = zip(*used, strict=True)
    labels = [example.label for example in examples]
    names = {example.id for example in examples}
    ragged = {
        "input_ids": Ragged.of([[vocabulary.cls_id, *text.ids.tolist(), vocabulary.sep_id] for text in texts], narrow),
        "example_ids": Ragged.of_texts(example.id for example in examples),
        "left_out": Ragged.of_texts(dict.fromkeys(row.id for row in left_out if row.id and row.id not in names)),
    }
    return {
        **{f"{name}.{part}": getattr(rows, part) for name, rows in ragged.items() for part in ("values", "offsets")},
        # The token before all others is [CLS].
        MENTION_STARTS: (np.concatenate([text.starts for text in texts]) + 1).astype(np.int32),
        MENTION_ENDS: (np.concatenate([text.ends for text in texts]) + 1).astype(np.int32),
        "labels": np.array([] if None in labels else labels, np.int64),
        "genders": np.array([GENDER_NAMES.index(example.gender) for example in examples], np.uint8),
    }
