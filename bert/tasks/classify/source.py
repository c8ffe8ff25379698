"""Data of text classification for plans: databases created from CSV files. Imports no torch."""

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from bert.data.lengths import is_synthetic
from bert.data.rows import Int64, Ragged, TokenRows
from bert.tasks.base import DataSource, Trained
from bert.tasks.classification_data import ClassificationData, check_judging
from bert.tasks.options import TaskOption
from bert.tasks.row_data import EVALUATION, TRAINING
from common.errors import InputError, UsageError

if TYPE_CHECKING:
    from bert.tasks.classify.store import TextSet, TextSource

TEST = "test"
"""The split that a trained model is judged by."""
_SPLITS = {TRAINING: "train", EVALUATION: "validate", TEST: "test"}
_SYNTHETIC_LABELS = 2
_MOST_NAMED = 5


class ClassifyData(ClassificationData):
    """Texts with labels, folded into rows, in the SQLite file of `bertbench data csv`."""

    name = "classify"
    trained_by = "bert.tasks.classify.task:ClassifyTask"
    commands: Mapping[str, tuple[str, str]] = MappingProxyType(
        {
            "data csv": (
                "bert.tasks.classify.commands:Prepare",
                "a CSV of texts with labels -> a SQLite file to train on",
            ),
            "predict": ("bert.tasks.classify.commands:Predict", "labels of the texts of a CSV"),
        }
    )
    options = (TaskOption(name="labels", kind=int, least=2, from_data=True),)

    def rows(self, source: Path, split: str, options: Mapping[str, Any], seq_len: int | None = None) -> TokenRows:
        """Read the rows of a split. Raises InputError: there are none, or damaged ones."""
        opened, found = self.texts(source, split)
        return token_rows(opened, found, split)

    def texts(self, source: Path, split: str) -> "tuple[TextSource, TextSet]":
        """Read the rows of a split with the numbers of their texts. Raises as `rows` does."""
        from bert.tasks.classify.store import is_database, open_source, read_split

        if source.is_file() and not is_database(source):
            word = shlex.quote(str(source))
            raise InputError(
                "data-unprepared",
                f"{source} is not a SQLite file of `data csv`: run `bertbench data csv {word} --vocab VOCAB.txt`",
            )
        opened = open_source(source)
        found = read_split(opened, _SPLITS[split])
        if not len(found.lengths):
            option = {TEST: " with a larger --test", EVALUATION: " with a larger --validation"}.get(split, "")
            raise InputError("data-missing", f"{source} has no text to {_SPLITS[split]}: create it again{option}")
        return opened, found

    def evaluation_rows(
        self, source: str, seq_len: int, wanted: str | None, options: Mapping[str, Any], training: TokenRows
    ) -> TokenRows:
        """Return the rows of `evaluation_texts`."""
        return self.evaluation_texts(source, seq_len, wanted, training)[0]

    def evaluation_texts(
        self, source: str, seq_len: int, wanted: str | None, training: TokenRows
    ) -> tuple[TokenRows, Int64]:
        """Return the rows to evaluate on, and the number of each row's text [N].

        Labels of another database have the codes there that they have where the model is trained.

        Args:
            source: the database that is trained on.
            seq_len: maximum tokens of a row of the run.
            wanted: the database with the texts to evaluate on; None is `source`.
            training: the rows that are trained on.

        Raises:
            InputError: there are none, they are damaged, longer than those that are trained on, of another vocabulary,
                or have labels that those have not.
            UsageError: they are of the same CSV, divided otherwise: some are trained on.
        """
        place = wanted or source
        opened, found = self.texts(Path(place), EVALUATION)
        if wanted is not None:
            from bert.tasks.classify.store import open_source

            found = _as_trained(open_source(Path(source)), opened, found)
        rows = token_rows(opened, found, EVALUATION)
        check_judging(rows, place, seq_len, training, source)
        return rows, found.texts

    def labels(self, options: Mapping[str, Any]) -> int:
        """Return the number of labels."""
        return int(options.get("labels", _SYNTHETIC_LABELS))

    def resolve(self, options: Mapping[str, Any], source: DataSource) -> Mapping[str, Any]:
        """Return the number of labels that the data have. Raises InputError."""
        if is_synthetic(source.source):
            return {"labels": _SYNTHETIC_LABELS, **options}
        from bert.tasks.classify.store import open_source

        return {"labels": len(open_source(Path(source.source)).labels)}

    def prepare_command(self, seq_len: int) -> str:
        """The command that makes a database."""
        return f"bertbench data csv FILE.csv --vocab VOCAB.txt --max-seq-length {seq_len}"

    def next_command(self, trained: Trained) -> list[str] | None:
        """What the results say, which the training leaves in the database of its texts."""
        return None if is_synthetic(trained.data) else ["bertbench", "report", trained.data]


def _as_trained(trained: "TextSource", opened: "TextSource", found: "TextSet") -> "TextSet":
    division, other = (
        {name: value for name, value in source.settings.items() if name != "max_seq_length"}
        for source in (trained, opened)
    )
    if trained.origin.get("digest") == opened.origin.get("digest") and division != other:
        raise UsageError(
            "option-conflict", f"{opened.path} and {trained.path} split the same CSV differently: create both alike"
        )
    codes = {label: code for code, label in enumerate(trained.labels)}
    met = [opened.labels[code] for code in np.unique(found.labels).tolist()]
    unknown = [label for label in met if label not in codes]
    if unknown:
        shown = ", ".join(repr(label[:40]) for label in unknown[:_MOST_NAMED]) + ", ..." * (len(unknown) > _MOST_NAMED)
        raise InputError(
            "labels-invalid",
            f"{opened.path} has {len(unknown):,} label(s) that {trained.path} lacks ({shown}): remove these texts",
        )
    table = np.array([codes.get(label, -1) for label in opened.labels], dtype=np.int64)
    return dataclasses.replace(found, labels=table[found.labels])


def rows_fingerprint(source: "TextSource", split: str) -> str:
    """Return TokenRows.fingerprint of a split."""
    return f"{source.fingerprint}/{split}"


def token_rows(source: "TextSource", found: "TextSet", split: str) -> TokenRows:
    """Return rows of a database as batches are made of them."""
    offsets = np.concatenate([[0], np.cumsum(found.lengths)]).astype(np.int64)
    return TokenRows(
        ids=Ragged(found.ids, offsets),
        second=found.lengths,
        labels=found.labels,
        fingerprint=rows_fingerprint(source, split),
        vocab_size=len(source.vocabulary.pieces),
        vocabulary=source.vocabulary.fingerprint,
        pad_id=source.vocabulary.pad_id,
        max_seq_length=source.max_seq_length,
    )
