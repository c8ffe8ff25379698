"""Which rows of GAP are trained on and which are evaluated on. Imports no torch."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bert.data.loading.order import spread
from bert.data.rows import Int64, Ragged, TokenRows
from bert.data.stages import fingerprint_of
from bert.tasks.gap.config import SPLITS
from bert.tasks.gap.features import FORM, GapFeatures
from common.errors import InputError

TRAINING, VALIDATION, TEST = SPLITS


def training_rows(source: Path, train_on_all: bool = False, sample_limit: int | None = None) -> TokenRows:
    """Return the rows to train on.

    Args:
        source: a file of features, or a folder with one for training.
        train_on_all: those for validation that lie beside them, too.
        sample_limit: at most so many of them all, spread evenly; None is no limit.

    Raises:
        InputError: there are none, several files of them, damaged ones, or two that do not fit together.
    """
    files = training_files(source, train_on_all)
    rows = joined([features.rows for features in files])
    if sample_limit is None or sample_limit >= len(rows):
        return rows
    return chosen(rows, spread(len(rows), sample_limit))


def training_files(source: Path, train_on_all: bool = False) -> list[GapFeatures]:
    """Return the features to train on, files apart; arguments and what it raises as `training_rows` has them."""
    files = [FORM.open(source, TRAINING)]
    if train_on_all:
        files.append(FORM.open(source if source.is_dir() else source.parent, VALIDATION))
    return files


def evaluation_features(source: Path, wanted: Path | None) -> GapFeatures:
    """Return the features to evaluate on.

    Args:
        source: what is trained on, a file or folder.
        wanted: a file, or a folder with features for validation; None is the folder of `source`.

    Raises:
        InputError: there are none, several, or damaged ones.
    """
    if wanted is None:
        return FORM.open(source if source.is_dir() else source.parent, VALIDATION)
    return FORM.open(wanted, VALIDATION)


def chosen(rows: TokenRows, numbers: Int64) -> TokenRows:
    """Return the rows with these numbers, in this order, as rows of their own."""
    return TokenRows(
        ids=Ragged.of([rows.ids[number] for number in numbers.tolist()], rows.ids.values.dtype),
        second=rows.second[numbers],
        labels=rows.labels[numbers] if rows.has_labels else rows.labels,
        columns={name: column[numbers] for name, column in rows.columns.items()},
        fingerprint=fingerprint_of(rows.fingerprint, numbers.tolist()),
        vocab_size=rows.vocab_size,
        vocabulary=rows.vocabulary,
        pad_id=rows.pad_id,
        max_seq_length=rows.max_seq_length,
    )


def joined(parts: Sequence[TokenRows]) -> TokenRows:
    """Return rows of several files behind one another; the longest max_seq_length holds for all.

    Raises:
        InputError: they were made with different vocabularies, or only some have labels.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    if len({part.vocabulary for part in parts}) > 1:
        raise InputError(
            "vocabulary-mismatch",
            "the features for training and for validation were made with different vocabularies: their ids mean "
            "different words, make both with the same vocab.txt and casing",
        )
    if len({part.has_labels for part in parts}) > 1:
        raise InputError(
            "labels-invalid", "the features for validation have no labels: make them of a TSV with A-coref and B-coref"
        )
    values = [part.ids.values for part in parts]
    begins = np.cumsum([0, *(len(value) for value in values[:-1])])
    offsets = [part.ids.offsets[1:] + begin for part, begin in zip(parts, begins, strict=True)]
    return TokenRows(
        ids=Ragged(np.concatenate(values), np.concatenate([[0], *offsets])),
        second=np.concatenate([part.second for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
        columns={name: np.concatenate([part.columns[name] for part in parts]) for name in first.columns},
        fingerprint=fingerprint_of(*(part.fingerprint for part in parts)),
        vocab_size=first.vocab_size,
        vocabulary=first.vocabulary,
        pad_id=first.pad_id,
        max_seq_length=max(part.max_seq_length for part in parts),
    )
